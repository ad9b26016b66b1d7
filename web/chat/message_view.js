// How one message looks. A view owns its element and is told when its message changed; what buttons do is up to
// `actions` (thread.js): again(message), edit(message, text), remove(message), results(message, texts), help(kind).
import { h, icon, iconButton, copyText } from '../dom.js';
import { MarkdownView } from './markdown.js';

// Shows a growing text as it is; only what is new is added.
class PlainView {
  constructor(root) { this.root = root; this.length = 0; }
  set(text) {
    if (text.length < this.length) { this.root.textContent = ''; this.length = 0; }
    this.root.append(text.slice(this.length));
    this.length = text.length;
  }
}

function imageStrip(images) {
  return h('div', { class: 'images' }, ...images.map((image) =>
    h('img', { src: image.url, alt: image.name || 'attached image', loading: 'lazy' })));
}

export class UserView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.bubble = h('div', { class: 'bubble' });
    this.element = h('article', { class: 'message user', 'aria-label': 'You' }, this.bubble,
      h('div', { class: 'actions' },
        iconButton('copy', 'Copy', (event) => copyText(message.text, event.currentTarget)),
        iconButton('edit', 'Edit and send again', () => this.edit(), { class: 'icon-button when-idle' }),
        iconButton('trash', 'Delete from here on', () => actions.remove(message), { class: 'icon-button when-idle' })));
    this.show();
  }

  show() {
    this.bubble.replaceChildren();
    if (this.message.images?.length) this.bubble.append(imageStrip(this.message.images));
    if (this.message.text) this.bubble.append(h('div', { class: 'text', text: this.message.text }));
    this.element.classList.remove('editing');
  }

  edit() {
    const field = h('textarea', { class: 'field', 'aria-label': 'Edit the message', value: this.message.text, rows: 1 });
    const fit = () => { field.rows = Math.min(14, field.value.split('\n').length + 1); };
    const send = () => {
      const text = field.value.trim();
      if (text || this.message.images?.length) this.actions.edit(this.message, text);
    };
    field.addEventListener('input', fit);
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') { event.stopPropagation(); this.show(); }
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    });
    this.bubble.replaceChildren(this.message.images?.length ? imageStrip(this.message.images) : '', field,
      h('div', { class: 'row end' },
        h('button', { type: 'button', class: 'button', text: 'Cancel', on: { click: () => this.show() } }),
        h('button', { type: 'button', class: 'button primary', text: 'Send again', on: { click: send } })));
    this.element.classList.add('editing');
    fit();
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

export class AnswerView {
  constructor(message, actions, onGrow) {
    this.message = message;
    this.actions = actions;
    this.reasoningText = h('div', { class: 'reasoning-text' });
    this.reasoningView = new PlainView(this.reasoningText);
    this.reasoningLabel = h('span', { text: 'Thinking' });
    this.reasoning = h('details', { class: 'reasoning', hidden: true },
      h('summary', {}, icon('chevron'), this.reasoningLabel), this.reasoningText);
    this.reasoning.querySelector('.icon').classList.add('chevron');
    this.content = h('div', { class: 'markdown' });
    this.contentView = new MarkdownView(this.content, { onChange: onGrow, decorate: decorateBlock });
    this.calls = h('div', { class: 'calls' });
    this.waiting = h('div', { class: 'waiting', role: 'presentation' }, h('i'), h('i'), h('i'));
    this.trouble = h('div', { class: 'trouble', hidden: true, role: 'alert' });
    this.stats = h('div', { class: 'stats' });
    this.element = h('article', { class: 'message assistant', 'aria-label': 'Answer' },
      this.reasoning, this.content, this.calls, this.waiting, this.trouble,
      h('footer', { class: 'foot' },
        h('div', { class: 'actions' },
          iconButton('copy', 'Copy', (event) => copyText(message.text, event.currentTarget)),
          iconButton('again', 'Answer again', () => actions.again(message), { class: 'icon-button when-idle' }),
          iconButton('trash', 'Delete from here on', () => actions.remove(message), { class: 'icon-button when-idle' })),
        this.stats));
    this.drawnCalls = [];
    this.update();
  }

  // Shows the message as it is now. Resolves when all of it is on the page.
  update() {
    const { message } = this;
    const isLive = message.finish === '';
    this.element.classList.toggle('live', isLive);
    this.element.setAttribute('aria-busy', 'true');
    if (message.reasoning) {
      this.reasoning.hidden = false;
      this.reasoningView.set(message.reasoning);
      const isThinking = isLive && !message.text && !message.calls.length;
      this.reasoning.classList.toggle('busy', isThinking);
      this.reasoningLabel.textContent = isThinking ? 'Thinking…'
        : message.stats.thinking_ms ? `Thought for ${seconds(message.stats.thinking_ms)}` : 'Thoughts';
    }
    this.waiting.hidden = !isLive || Boolean(message.text || message.reasoning || message.calls.length);
    this.showCalls();
    this.showTrouble();
    this.stats.replaceChildren(...statLine(message));
    return this.contentView.set(message.text).then(() => {
      if (message.finish) this.element.setAttribute('aria-busy', 'false');
    });
  }

  showCalls() {
    const { message } = this;
    message.calls.forEach((call, i) => {
      if (!this.drawnCalls[i]) {
        const body = h('pre', { tabindex: 0, 'aria-label': 'Arguments' });
        const name = h('code', {});
        const card = h('div', { class: 'call' }, h('div', { class: 'call-head' }, icon('tool'), 'Tool call', name), body);
        this.calls.append(card);
        this.drawnCalls[i] = { card, body, name, shown: null };
      }
      const drawn = this.drawnCalls[i];
      drawn.name.textContent = call.name;
      const text = message.finish ? pretty(call.arguments) : call.arguments;
      if (drawn.shown !== text) drawn.body.textContent = drawn.shown = text;
    });
  }

  // Fields for the results of the calls, once the answer waits for them.
  askForResults() {
    if (this.element.querySelector('.results')) return;
    const fields = this.message.calls.map((call) => h('textarea', { class: 'field code', rows: 2,
      placeholder: `Result of ${call.name}`, 'aria-label': `Result of ${call.name}` }));
    this.drawnCalls.forEach((drawn, i) => drawn.card.append(fields[i]));
    this.calls.append(h('div', { class: 'results row end' },
      h('button', { type: 'button', class: 'button primary when-idle', text: fields.length > 1 ? 'Send results' : 'Send result',
        on: { click: () => this.actions.results(this.message, fields.map((field) => field.value)) } })));
  }

  showTrouble() {
    const { trouble } = this.message;
    this.trouble.hidden = !trouble;
    if (!trouble || this.trouble.dataset.for === trouble.detail) return;
    this.trouble.dataset.for = trouble.detail;
    const { actions } = this;
    const helps = { key: 'Enter a key', settings: 'Open settings', models: 'Look for models', new: 'New conversation' };
    this.trouble.replaceChildren(icon('warning'), h('div', {},
      h('strong', { text: trouble.title }),
      h('p', { class: 'detail', text: trouble.detail }),
      h('p', { text: trouble.hint }),
      h('div', { class: 'row wrap' },
        h('button', { type: 'button', class: 'button primary when-idle', text: 'Try again', on: { click: () => actions.again(this.message) } }),
        helps[trouble.action] && h('button', { type: 'button', class: 'button', text: helps[trouble.action],
          on: { click: () => actions.help(trouble.action) } }))));
  }
}

// A result that the reader gave for a call.
export class ToolView {
  constructor(message) {
    this.message = message;
    this.element = h('article', { class: 'message tool', 'aria-label': 'Tool result' },
      h('details', { class: 'call' },
        h('summary', { class: 'call-head' }, icon('chevron'), 'Tool result'),
        h('pre', { tabindex: 0, text: message.text })));
    this.element.querySelector('.icon').classList.add('chevron');
  }
}

const FINISHES = {
  length: 'cut off at the token limit', stopped: 'stopped', interrupted: 'interrupted', error: '',
  content_filter: 'ended by a content filter', insufficient_system_resource: 'ended by the server: out of resources',
};

const seconds = (ms) => (ms < 9950 ? (ms / 1000).toFixed(ms < 995 ? 2 : 1) : Math.round(ms / 1000)) + ' s';
const count = (n) => n.toLocaleString('en');

function statLine(message) {
  const s = message.stats;
  const parts = [];
  const add = (text, title) => parts.push(h('span', { text, title }));
  if (FINISHES[message.finish]) parts.push(h('span', { class: 'finish', text: FINISHES[message.finish] }));
  if (s.completion_tokens !== undefined) {
    add(`${count(s.completion_tokens)} tokens`, s.reasoning_tokens ? `${count(s.reasoning_tokens)} of them thinking` : '');
    const generating_ms = s.total_ms - s.first_token_ms;
    if (s.completion_tokens > 1 && generating_ms > 0) {
      const speed = (s.completion_tokens - 1) * 1000 / generating_ms;
      add(`${speed < 100 ? speed.toFixed(1) : count(Math.round(speed))} tokens/s`, 'after the first token');
    }
  } else if (s.total_ms !== undefined) {
    add(seconds(s.total_ms), 'The server reports no token counts for an answer without its end');
  }
  if (s.first_token_ms !== undefined) add(`first after ${seconds(s.first_token_ms)}`, 'Time from sending to the first token');
  if (s.prompt_tokens !== undefined) {
    add(`prompt of ${count(s.prompt_tokens)}${s.cached_tokens ? `, ${count(s.cached_tokens)} cached` : ''}`,
      'Tokens of the whole conversation as the model read it');
  }
  if (message.model && message.finish) add(message.model, 'Model');
  return parts;
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

// Gives code a head with its language and a copy button, and lets wide tables scroll by themselves.
function decorateBlock(block) {
  for (const code of block.querySelectorAll('pre > code')) {
    const pre = code.parentElement;
    const language = (/language-(\S+)/.exec(code.className) || [])[1] || 'text';
    const frame = h('div', { class: 'code-frame' });
    pre.tabIndex = 0;
    pre.replaceWith(frame);
    frame.append(h('div', { class: 'code-head' }, h('span', { text: language }),
      iconButton('copy', 'Copy code', (event) => copyText(code.textContent, event.currentTarget))), pre);
  }
  for (const table of block.querySelectorAll('table')) {
    const frame = h('div', { class: 'table-frame', tabindex: 0, role: 'region', 'aria-label': 'Table' });
    table.replaceWith(frame);
    frame.append(table);
  }
}
