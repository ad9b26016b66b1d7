// Shows Markdown that nobody vouches for. Three walls: the worker writes no tag that the answer brought along, DOMPurify
// lets only a short list of elements and attributes through, and the page's content security policy runs no script and
// loads no image from elsewhere. What costs too much time or is too large is shown as plain text.
/* global DOMPurify */
import { h } from '../dom.js';

const MAX_MARKDOWN_CHARS = 300_000;  // longer answers stay plain text
const MAX_HTML_CHARS = 3_000_000;    // colours can multiply the size
const MAX_BLOCKS = 10_000;
const DEADLINE_MS = 2500;
const WORKER_URL = '/web/chat/markdown_worker.js';

const policy = window.trustedTypes?.createPolicy('deepinfer', { createScriptURL: (url) => url });

const CLEAN = {
  ALLOWED_TAGS: ['p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'strong', 'em', 'del', 'code', 'pre', 'span', 'a',
    'ul', 'ol', 'li', 'blockquote', 'table', 'thead', 'tbody', 'tr', 'th', 'td'],
  ALLOWED_ATTR: ['href', 'class', 'start', 'align'],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ADD_URI_SAFE_ATTR: ['align', 'start'],  // no addresses: the rule above is not theirs
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

let hooked = false;
function clean(html) {
  if (!hooked) {
    hooked = true;
    DOMPurify.addHook('uponSanitizeAttribute', (node, data) => {
      // Of classes only those of code colours: an answer must not dress up as a part of the page.
      if (data.attrName === 'class' && !/^(?:hljs-[\w-]+|language-[\w+#.-]+|image-link)(?: hljs-[\w-]+)*$/.test(data.attrValue)) {
        data.keepAttr = false;
      }
    });
  }
  const fragment = DOMPurify.sanitize(html, CLEAN);
  for (const link of fragment.querySelectorAll('a')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer nofollow';
    link.title = link.href;  // where it really leads
  }
  return fragment;
}

// One worker for the page, one job at a time; a job that runs over its time ends the worker with it.
class Renderer {
  constructor() {
    this.queue = Promise.resolve();
    this.nextId = 1;
    this.worker = null;
  }

  // The HTML of the blocks of `text`, or null if it is to be shown as it is.
  blocks(text) {
    const job = this.queue.then(async () =>
      (await this.attempt(text, true)) ?? (await this.attempt(text, false)));
    this.queue = job.catch(() => {});
    return job;
  }

  attempt(text, colours) {
    const id = this.nextId++;
    this.worker ??= new Worker(policy ? policy.createScriptURL(WORKER_URL) : WORKER_URL);
    const worker = this.worker;
    return new Promise((resolve) => {
      let timer = 0;
      const finish = (blocks, endWorker) => {
        clearTimeout(timer);
        worker.onmessage = worker.onerror = null;
        if (endWorker) { worker.terminate(); this.worker = null; }
        resolve(blocks);
      };
      const wait = (ms) => { clearTimeout(timer); timer = setTimeout(() => finish(null, true), ms); };
      worker.onmessage = ({ data }) => {
        if (data.id !== id) return;
        if (data.wait_ms !== undefined) wait(data.wait_ms || DEADLINE_MS);
        else finish(data.failed || data.blocks.length > MAX_BLOCKS ||
          data.blocks.reduce((sum, block) => sum + block.length, 0) > MAX_HTML_CHARS ? null : data.blocks, false);
      };
      worker.onerror = (event) => { event.preventDefault(); finish(null, true); };
      wait(id === 1 ? 4 * DEADLINE_MS : DEADLINE_MS);  // the first one loads the parser
      worker.postMessage({ id, text, colours });
    });
  }
}

const renderer = new Renderer();

// Shows a growing text in `root`. `set(text)` may be called as often as text arrives: one rendering runs at a time, the
// newest text wins, and only blocks that changed are replaced, so a selection in an earlier paragraph survives.
export class MarkdownView {
  constructor(root, { onChange = () => {}, decorate = () => {} } = {}) {
    this.root = root;
    this.onChange = onChange;
    this.decorate = decorate;  // gets each new block's element
    this.text = '';
    this.shown = [];   // HTML of the blocks on the page
    this.isPlain = false;
    this.plainChars = 0;
    this.running = null;
  }

  // Resolves when the newest text is on the page.
  set(text) {
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    this.running ??= this.run().finally(() => { this.running = null; });
    return this.running;
  }

  reset() {
    this.root.replaceChildren();
    this.shown = [];
    this.isPlain = false;
    this.plainChars = 0;
  }

  async run() {
    let done = null;
    while (done !== this.text) {
      const text = this.text;
      const start = performance.now();
      if (!this.isPlain && text.length > MAX_MARKDOWN_CHARS) this.becomePlain();
      if (!this.isPlain) {
        const blocks = await renderer.blocks(text);
        if (!this.text.startsWith(text)) continue;  // replaced meanwhile
        if (blocks === null) this.becomePlain();
        else this.showBlocks(blocks);
      }
      if (this.isPlain) this.showPlain();
      done = text;
      this.onChange();
      // A third of the time at most goes into showing: long answers are drawn less often.
      const pause = Math.min(1000, Math.max(40, 2 * (performance.now() - start)));
      if (done !== this.text) await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  showBlocks(blocks) {
    blocks.forEach((html, i) => {
      if (this.shown[i] === html) return;
      const element = h('div', { class: 'block' });
      element.append(clean(html));
      this.decorate(element);
      if (i < this.root.children.length) this.root.children[i].replaceWith(element);
      else this.root.append(element);
    });
    while (this.root.children.length > blocks.length) this.root.lastChild.remove();
    this.shown = blocks;
  }

  becomePlain() {
    this.reset();
    this.isPlain = true;
    this.root.append(h('p', { class: 'note', text: 'This answer is shown as plain text: it is too long or too intricate to be laid out.' }));
  }

  // Plain text only grows, in pieces that the layout can take one by one.
  showPlain() {
    const PIECE = 20_000;
    while (this.plainChars < this.text.length) {
      let last = this.root.lastChild;
      if (!last.classList.contains('plain') || last.textContent.length >= PIECE) {
        last = h('div', { class: 'plain' });
        this.root.append(last);
      }
      const end = Math.min(this.text.length, this.plainChars + PIECE - last.textContent.length);
      last.append(this.text.slice(this.plainChars, end));
      this.plainChars = end;
    }
  }
}
