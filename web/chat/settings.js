// What the reader set for the next answers. Kept in localStorage, but for the API key: that stays in this tab's memory,
// or, if asked, in sessionStorage (gone when the tab closes).

const KEY = 'deepinfer.settings';
const API_KEY = 'deepinfer.key';

const DEFAULTS = {
  model: '', thinking: 'default', system: '', temperature: '', top_p: '', max_tokens: '', seed: '', tools: '', extra: '',
};

// Fields of the request that this page fills itself: "More request fields" must not replace them.
const RESERVED = ['messages', 'stream', 'stream_options', 'n'];

export const settings = { ...DEFAULTS };
let apiKey = '';

export function loadSettings() {
  try {
    const saved = JSON.parse(localStorage.getItem(KEY) || '{}');
    for (const name of Object.keys(DEFAULTS)) if (typeof saved[name] === 'string') settings[name] = saved[name];
    apiKey = sessionStorage.getItem(API_KEY) || '';
  } catch { /* without storage the defaults hold */ }
}

export function saveSettings(changes) {
  Object.assign(settings, changes);
  try { localStorage.setItem(KEY, JSON.stringify(settings)); } catch { /* lasts until the page closes */ }
}

export const defaultsExcept = (names) => Object.fromEntries(
  Object.entries(DEFAULTS).filter(([name]) => !names.includes(name)));

export const getApiKey = () => apiKey;

export function isKeyRemembered() {
  try { return sessionStorage.getItem(API_KEY) !== null; } catch { return false; }
}

export function setApiKey(key, remember) {
  apiKey = key.trim();
  try {
    if (remember && apiKey) sessionStorage.setItem(API_KEY, apiKey);
    else sessionStorage.removeItem(API_KEY);
  } catch { /* the key stays in memory */ }
}

// Problems by field, {} if there is none: the same bounds as the server's, said before anything is sent.
export function problems(values) {
  const out = {};
  const range = (name, low, high, { whole = false, above = false } = {}) => {
    const text = values[name].trim();
    if (text === '') return;
    const value = Number(text);
    const isBad = !Number.isFinite(value) || value < low || value > high || (above && value === low) ||
      (whole && !Number.isSafeInteger(value));
    if (isBad) out[name] = `${whole ? 'A whole number' : 'A number'} ${above ? 'above' : 'from'} ${low}` +
      (high === Infinity || high === Number.MAX_SAFE_INTEGER ? '' : ` to ${high}`);
  };
  range('temperature', 0, 2);
  range('top_p', 0, 1, { above: true });
  range('max_tokens', 1, Number.MAX_SAFE_INTEGER, { whole: true });
  range('seed', 0, Number.MAX_SAFE_INTEGER, { whole: true });
  if (values.tools.trim()) {
    try {
      if (!Array.isArray(JSON.parse(values.tools))) out.tools = 'A JSON list of tools: [{"type": "function", …}]';
    } catch (error) { out.tools = 'Not JSON: ' + error.message; }
  }
  if (values.extra.trim()) {
    try {
      const extra = JSON.parse(values.extra);
      if (extra === null || typeof extra !== 'object' || Array.isArray(extra)) out.extra = 'A JSON object: {"stop": ["END"]}';
      else if (Object.keys(extra).some((name) => RESERVED.includes(name))) {
        out.extra = `This page sets ${RESERVED.join(', ')} itself`;
      }
    } catch (error) { out.extra = 'Not JSON: ' + error.message; }
  }
  return out;
}

// The body of a chat completion for these messages of a conversation.
export function requestBody(messages) {
  const body = { model: settings.model, messages: messages.flatMap(wireMessage), stream: true,
    stream_options: { include_usage: true } };
  if (settings.system.trim()) body.messages.unshift({ role: 'system', content: settings.system });
  for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
    if (settings[name].trim() !== '') body[name] = Number(settings[name]);
  }
  if (settings.thinking === 'off') body.thinking = { type: 'disabled' };
  else if (settings.thinking !== 'default') {
    body.thinking = { type: 'enabled' };
    body.reasoning_effort = settings.thinking;
  }
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  if (settings.extra.trim()) Object.assign(body, JSON.parse(settings.extra));
  return body;
}

function wireMessage(message) {
  if (message.role === 'tool') return [{ role: 'tool', tool_call_id: message.call_id, content: message.text }];
  if (message.role === 'user') {
    if (!message.images?.length) return [{ role: 'user', content: message.text }];
    const parts = message.images.map((image) => ({ type: 'image_url', image_url: { url: image.url } }));
    if (message.text) parts.push({ type: 'text', text: message.text });
    return [{ role: 'user', content: parts }];
  }
  const out = { role: 'assistant', content: message.text };
  if (message.reasoning) out.reasoning_content = message.reasoning;
  // Calls that broke off have no results and perhaps no whole arguments: the model is told of finished ones only.
  if (message.calls?.length && message.finish === 'tool_calls') {
    out.tool_calls = message.calls.map((call) => ({ id: call.id, type: 'function',
      function: { name: call.name, arguments: call.arguments } }));
  }
  // An answer that ended before its first word says nothing to the model.
  return out.content || out.reasoning_content || out.tool_calls ? [out] : [];
}
