// Turns the Markdown of an answer into HTML, away from the page: what a model writes may be built to make a parser slow,
// and a worker can be ended. The page cleans the HTML again (markdown.js) before any of it is shown.
//
// In: {id, text, colours}. Out: {id, blocks}, the HTML of each top-level block, or {id, failed: true}; before a slow
// one-time step {id, wait_ms}.
/* global importScripts, marked, hljs */
'use strict';

// Both paths are fixed strings: where a browser has trusted types, it may ask for exactly this policy.
const trusted = self.trustedTypes?.createPolicy('deepinfer', { createScriptURL: (url) => url });
const load = (url) => importScripts(trusted ? trusted.createScriptURL(url) : url);

load('/web/lib/marked.js');

const MAX_COLOURED_CHARS = 30_000;  // of one code block; longer ones stay plain
const MAX_DEPTH = 60;               // blocks within blocks, as the page's layout bears them
let colours = true;
let currentId = 0;

const escape = (text) => String(text).replace(/[&<>"']/g,
  (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' })[c]);

// Links lead to the web or to mail, nowhere else.
const safeUrl = (href) => {
  const url = String(href || '').trim();
  return /^(?:https?:\/\/|mailto:)[^\s<>"]+$/i.test(url) ? url : null;
};

function highlighted(code, language) {
  if (!colours || !language || code.length > MAX_COLOURED_CHARS) return null;
  if (typeof hljs === 'undefined') {
    postMessage({ id: currentId, wait_ms: 15_000 });  // most of a megabyte to read, once
    load('/web/lib/highlight.js');
    postMessage({ id: currentId, wait_ms: 0 });
  }
  if (!hljs.getLanguage(language)) return null;
  return hljs.highlight(language, code, true).value;
}

marked.use({
  gfm: true,
  mangle: false,
  headerIds: false,
  renderer: {
    html: (text) => escape(text),  // tags in the answer are text of the answer
    code(code, info) {
      const language = (/^[\w+#.-]{1,30}/.exec(info || '') || [''])[0].toLowerCase();
      let body = null;
      try { body = highlighted(code, language); } catch { /* a broken grammar costs the colours, not the code */ }
      return `<pre><code class="language-${escape(language || 'text')}">${body ?? escape(code)}</code></pre>\n`;
    },
    // marked hands over escaped text; an address that may not be followed stands beside it as text.
    link(href, title, text) {
      const url = safeUrl(href);
      return url ? `<a href="${escape(url)}">${text}</a>` : `${text} (${escape(href)})`;
    },
    // Images are never fetched: whoever wrote the answer could learn who read it. A link can be followed on purpose.
    image(href, title, text) {
      const url = safeUrl(href);
      const label = `image: ${escape(text) || 'without description'}`;
      return url ? `<a href="${escape(url)}" class="image-link">${label}</a>` : `[${label}]`;
    },
    checkbox: (checked) => (checked ? '☑ ' : '☐ '),
  },
});

// How deep the deepest block stands. Without recursion: the text may be made of nothing but nesting.
function depthOf(tokens) {
  let level = tokens;
  let depth = 0;
  while (level.length) {
    ++depth;
    const next = [];
    for (const token of level) {
      if (token.tokens) for (const child of token.tokens) next.push(child);
      if (token.items) for (const item of token.items) for (const child of item.tokens || []) next.push(child);
    }
    level = next;
  }
  return depth;
}

onmessage = ({ data }) => {
  currentId = data.id;
  colours = data.colours;
  try {
    const tokens = marked.lexer(data.text);
    if (depthOf(tokens) > MAX_DEPTH) throw new Error('too deep');
    const blocks = tokens.filter((token) => token.type !== 'space').map((token) => (token.type === 'html'
      ? `<p>${escape(token.raw.trim()).replace(/\n/g, '<br>')}</p>` : marked.parser([token])));
    postMessage({ id: data.id, blocks });
  } catch {
    postMessage({ id: data.id, failed: true });
  }
};
