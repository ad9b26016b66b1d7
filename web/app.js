// The chat page: puts its parts together. Where to read on: chat/generation.js (one answer), chat/thread.js and
// chat/message_view.js (what is shown), chat/markdown.js (how untrusted text is shown), chat/store.js (what is kept).
import { announce, byId, h } from './dom.js';
import { chooseTheme, shownTheme } from './theme.js';
import { ApiError, listModels, readiness } from './chat/api.js';
import { Composer } from './chat/composer.js';
import { Generation, emptyAnswer } from './chat/generation.js';
import { getApiKey, loadSettings, problems, requestBody, saveSettings, settings } from './chat/settings.js';
import { SettingsDialog } from './chat/settings_dialog.js';
import { Sidebar } from './chat/sidebar.js';
import { Store, newConversation, newId } from './chat/store.js';
import { Thread, waitsForResults } from './chat/thread.js';

const SAVE_EVERY_MS = 2000;  // of an answer that is being made: a reload loses no more
const OPEN_KEY = 'deepinfer.open';

loadSettings();
const store = await Store.open();
let conversation = newConversation();
let running = null;  // the Generation in progress; the page makes one answer at a time

const thread = new Thread(byId('thread'), byId('scroller'), byId('empty'), byId('to-end'), {
  again: (message) => { if (mayAnswer()) { cutAt(message); answer(); } },
  edit: (message, text) => {
    if (!mayAnswer()) return;
    const images = message.images;
    cutAt(message);
    ask(text, images || []);
  },
  remove: (message) => { if (!running) { cutAt(message); keep(); } },
  results: (message, texts) => {
    if (!mayAnswer()) return;
    message.calls.forEach((call, i) => addMessage({ role: 'tool', call_id: call.id, text: texts[i] }));
    thread.view(message).element.querySelectorAll('.results, .call > textarea').forEach((element) => element.remove());
    answer();
  },
  help: (kind) => {
    if (kind === 'key') settingsDialog.open('set-key');
    else if (kind === 'settings') settingsDialog.open();
    else if (kind === 'models') refreshModels();
    else if (kind === 'new') openConversation(null);
  },
});

const sidebar = new Sidebar(store, {
  onOpen: (id) => openConversation(id),
  onNew: () => openConversation(null),
  onRemoved: (id) => { if (id === conversation.id) openConversation(null); },
});
sidebar.onRenamed = (id, title) => {
  if (id === conversation.id && title) Object.assign(conversation, { title, titled: true });
};

const composer = new Composer({
  onSend: ({ text, images }) => {
    if (!mayAnswer()) return false;
    if (waitsForResults(conversation)) {
      composer.say('The model waits for the results of its calls: fill them in above.');
      return false;
    }
    ask(text, images);
    return true;
  },
  onStop: () => running?.stop(),
  onEditLast: () => {
    const last = conversation.messages.findLast((message) => message.role === 'user');
    if (!last || running) return false;
    thread.view(last).edit();
    return true;
  },
});

const settingsDialog = new SettingsDialog(store, {
  onKey: () => refreshModels(),
  onTheme: () => drawThemeButton(),
  onData: async () => {
    await sidebar.refresh();
    if (!await store.get(conversation.id)) openConversation(null);
  },
});

// Conversation

function addMessage(message) {
  const full = { id: newId(), ...message };
  conversation.messages.push(full);
  return thread.add(full);
}

// Takes away the message and all after it.
function cutAt(message) {
  if (running) return;
  const at = conversation.messages.indexOf(message);
  if (at >= 0) conversation.messages.splice(at);
  thread.refresh(conversation);
}

function ask(text, images) {
  addMessage(images.length ? { role: 'user', text, images } : { role: 'user', text });
  if (!conversation.titled) {
    conversation.title = (text || images[0].name).split('\n', 1)[0].slice(0, 80) || 'New conversation';
    conversation.titled = true;
    document.title = `${conversation.title} – deepinfer`;
  }
  answer();
}

// Whether a request can be sent now; if not, says why.
function mayAnswer() {
  if (running) return false;
  if (!settings.model) {
    composer.say('No model yet: is the server ready?');
    refreshModels();
    return false;
  }
  const [wrong] = Object.keys(problems(settings));
  if (wrong) settingsDialog.open('set-' + wrong);
  return !wrong;
}

// Lets the model answer the conversation as it stands.
async function answer() {
  const target = conversation;
  const generation = running = new Generation();
  document.body.classList.add('busy');
  composer.setBusy(true);
  const body = requestBody(target.messages);
  const message = emptyAnswer(newId(), settings.model);
  target.messages.push(message);
  const view = thread.add(message);
  thread.scrollToEnd();
  keep(target);

  let isScheduled = false;
  let saved = performance.now();
  await generation.run(body, getApiKey(), message, () => {
    if (performance.now() - saved > SAVE_EVERY_MS) { saved = performance.now(); keep(target, false); }
    if (isScheduled) return;
    isScheduled = true;
    // Not requestAnimationFrame: it sleeps in a hidden tab, and the answer is to go on there.
    setTimeout(() => { isScheduled = false; view.update(); }, 16);
  });
  await keep(target);
  running = null;
  document.body.classList.remove('busy');
  composer.setBusy(false);
  await view.update();
  if (target === conversation) thread.refresh(conversation);
  announce(message.trouble ? message.trouble.title : 'The answer is complete');
  if (message.trouble?.action === 'key') refreshModels();
}

async function keep(target = conversation, isNews = true) {
  if (isNews) target.updated_ms = Date.now();
  try {
    if (target.messages.length) await store.put(target);
    else await store.remove(target.id);
    rememberOpen();
    if (isNews) await sidebar.refresh(conversation.id);
  } catch {
    composer.say('The browser keeps no more: export and delete older conversations.');
  }
}

function rememberOpen() {
  try { sessionStorage.setItem(OPEN_KEY, conversation.id); } catch { /* the page begins with a new one then */ }
}

async function openConversation(id) {
  if (running) running.stop();
  const found = id ? await store.get(id) : null;
  conversation = found || newConversation();
  for (const message of conversation.messages) {
    // The page was left while this answer was coming.
    if (message.role === 'assistant' && message.finish === '') message.finish = 'interrupted';
  }
  thread.show(conversation);
  rememberOpen();
  document.title = found ? `${conversation.title} – deepinfer` : 'deepinfer';
  await sidebar.refresh(conversation.id);
  if (!matchMedia('(pointer: coarse)').matches) byId('input').focus();  // no keyboard over half a phone unasked
}

store.onChange(async (id) => {
  await sidebar.refresh();
  if (!running && id === conversation.id) {
    const fresh = await store.get(id);
    if (fresh) { conversation = fresh; thread.show(conversation); }
  }
});

// Model, readiness

async function refreshModels() {
  try {
    const names = await listModels(getApiKey());
    const select = byId('model');
    select.replaceChildren(...names.map((name) => h('option', { value: name, text: name })));
    if (!names.includes(settings.model)) saveSettings({ model: names[0] || '' });
    select.value = settings.model;
    await watchReadiness();
  } catch (error) {
    const advice = error instanceof ApiError ? error.advice() : { title: 'The server cannot be understood', hint: error.message, action: '' };
    showBanner(advice.title + '. ' + advice.hint,
      advice.action === 'key' ? ['Enter a key', () => settingsDialog.open('set-key')] : ['Try again', refreshModels]);
  }
}

let readinessTimer = 0;
async function watchReadiness() {
  clearTimeout(readinessTimer);
  const state = await readiness();
  if (state.ready) { showBanner(''); return; }
  showBanner(state.reason === 'draining' ? 'The server is shutting down.'
    : 'The server is not ready yet: it is loading its model.');
  readinessTimer = setTimeout(() => refreshModels(), 2000);
}

function showBanner(text, action = null) {
  const banner = byId('banner');
  banner.hidden = !text;
  banner.replaceChildren(h('span', { text }));
  if (action) banner.append(h('button', { type: 'button', class: 'button', text: action[0], on: { click: action[1] } }));
}

// Keys, theme

addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !document.querySelector('dialog[open]')) {
    if (running) running.stop();
    else if (sidebar.narrow.matches && sidebar.isOpen) sidebar.toggle(false);
  }
  if (event.altKey && !event.ctrlKey && event.code === 'KeyN') { event.preventDefault(); openConversation(null); }
});

function drawThemeButton() {
  byId('toggle-theme').querySelector('use').setAttribute('href', shownTheme() === 'dark' ? '#i-sun' : '#i-moon');
}
byId('toggle-theme').addEventListener('click', () => {
  chooseTheme(shownTheme() === 'dark' ? 'light' : 'dark');
  drawThemeButton();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawThemeButton);
drawThemeButton();

byId('model').addEventListener('change', (event) => saveSettings({ model: event.target.value }));
byId('thinking').value = settings.thinking;
byId('thinking').addEventListener('change', (event) => saveSettings({ thinking: event.target.value }));

let opened = null;
try { opened = sessionStorage.getItem(OPEN_KEY); } catch { /* as above */ }
await openConversation(opened);
await refreshModels();
document.documentElement.dataset.state = 'ready';
