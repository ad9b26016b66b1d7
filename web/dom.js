// Building page elements from code. Text always goes in as text nodes: nothing here parses markup.

const SVG = 'http://www.w3.org/2000/svg';

// Makes an element. `props`: `class`, `text`, `on` (event name → listener), properties the element has, and
// anything else as an attribute; null, undefined and false are left out. Children: nodes, strings, null.
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'class') element.className = value;
    else if (name === 'text') element.textContent = value;
    else if (name === 'on') Object.entries(value).forEach(([event, f]) => element.addEventListener(event, f));
    else if (name in element && !name.startsWith('aria')) element[name] = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

// Makes an SVG element; every property is an attribute.
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A picture of the sprite that stands in the page.
export function icon(name) {
  return svg('svg', { class: 'icon', 'aria-hidden': 'true', focusable: 'false' },
    svg('use', { href: '#i-' + name }));
}

// A button that shows a picture only; `label` is what it says to screen readers and on hover.
export function iconButton(name, label, onClick, props = {}) {
  return h('button', { type: 'button', class: 'icon-button', title: label, 'aria-label': label,
    on: { click: onClick }, ...props }, icon(name));
}

export const byId = (id) => document.getElementById(id);

// Copies text; says on the button for a moment whether it worked (a page over plain http to another host has no
// clipboard, so there is the old way, too).
export async function copyText(text, button) {
  let copied = false;
  try {
    await navigator.clipboard.writeText(text);
    copied = true;
  } catch {
    const area = h('textarea', { class: 'off-screen', value: text });
    document.body.append(area);
    area.select();
    copied = document.execCommand('copy');
    area.remove();
  }
  announce(copied ? 'Copied' : 'Copying is not possible here');
  if (!button) return;
  button.dataset.state = copied ? 'done' : 'failed';
  setTimeout(() => delete button.dataset.state, 1500);
}

// Says something to screen readers without moving the focus.
export function announce(text) {
  const region = byId('announcer');
  if (region) region.textContent = text;
}

// Offers bytes as a file.
export function download(name, text, type = 'application/json') {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h('a', { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Asks before something is lost. Resolves to true or false.
export function confirmDialog(question, detail, verb) {
  return new Promise((resolve) => {
    const dialog = h('dialog', { class: 'dialog small', 'aria-labelledby': 'confirm-title' },
      h('h2', { id: 'confirm-title', text: question }),
      h('p', { text: detail }),
      h('div', { class: 'row end' },
        h('button', { type: 'button', class: 'button', text: 'Cancel', autofocus: true,
          on: { click: () => dialog.close('no') } }),
        h('button', { type: 'button', class: 'button danger', text: verb, on: { click: () => dialog.close('yes') } })));
    dialog.addEventListener('close', () => { resolve(dialog.returnValue === 'yes'); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
