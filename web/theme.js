// Light or dark: as the system has it, or as the reader chose ("system", "light", "dark").

const KEY = 'deepinfer.theme';

export function themeChoice() {
  try { return localStorage.getItem(KEY) || 'system'; } catch { return 'system'; }
}

export function applyTheme(choice = themeChoice()) {
  if (choice === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

export function chooseTheme(choice) {
  try { localStorage.setItem(KEY, choice); } catch { /* without storage the choice lasts until the page closes */ }
  applyTheme(choice);
}

// What is shown now, "light" or "dark".
export function shownTheme() {
  const set = document.documentElement.dataset.theme;
  return set || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
}

applyTheme();
