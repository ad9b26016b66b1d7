// Calls of the server: models, readiness, and one streamed chat completion.
import { readEvents } from './sse.js';

// What went wrong, in the server's words if it had any, and what the reader can do about it.
export class ApiError extends Error {
  constructor(message, { status = 0, code = '', param = '', retryAfterS = 0, isNetwork = false } = {}) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfterS = retryAfterS;
    this.isNetwork = isNetwork;
  }

  // {title, hint, action}: action is "key", "models", "new" or "" (trying again is always offered).
  advice() {
    if (this.isNetwork) {
      return { title: 'The server does not answer', action: '',
        hint: 'Check that deepinfer serve is running and that this address is reachable, then try again.' };
    }
    if (this.code === 'context_length_exceeded') {
      return { title: 'The conversation is too long for the model', action: 'new',
        hint: 'Begin a new conversation, shorten the message, or lower “Max tokens” in the settings.' };
    }
    switch (this.status) {
      case 400: case 422:
        return { title: 'The server refused this request', action: this.param ? 'settings' : '',
          hint: this.param ? `It names “${this.param}”: look at the settings.`
            : 'Change the message or the settings, then try again.' };
      case 401:
        return { title: 'An API key is needed', action: 'key', hint: 'Enter a key in the settings, then try again.' };
      case 403:
        return { title: 'This API key may not do that', action: 'key',
          hint: 'The key needs the scope “infer”. Enter another one, or ask who runs this server.' };
      case 404:
        return { title: 'The server does not know this model', action: 'models', hint: 'Choose another model at the top.' };
      case 413:
        return { title: 'The request is too large', action: '', hint: 'Send fewer or smaller images.' };
      case 429:
        return { title: 'The server is busy', action: '',
          hint: this.retryAfterS ? `It asks to wait ${this.retryAfterS} s.` : 'Wait a little, then try again.' };
      case 503:
        return { title: 'The server is not ready', action: '',
          hint: 'It is loading its model or shutting down. Try again in a while.' };
      default:
        return { title: 'The server failed', action: '', hint: 'Try again; its log says more.' };
    }
  }
}

function headers(key, more = {}) {
  return key ? { authorization: 'Bearer ' + key, ...more } : more;
}

async function call(path, options) {
  try {
    return await fetch(path, { credentials: 'omit', cache: 'no-store', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('No answer from ' + location.host, { isNetwork: true });
  }
}

async function errorOf(response) {
  let detail = {};
  try { detail = (await response.json()).error || {}; } catch { /* a proxy may answer with HTML */ }
  return new ApiError(String(detail.message || `HTTP ${response.status} ${response.statusText}`).slice(0, 2000), {
    status: response.status,
    code: String(detail.code || ''),
    param: String(detail.param || ''),
    retryAfterS: Number(response.headers.get('retry-after')) || 0,
  });
}

export async function listModels(key) {
  const response = await call('/v1/models', { headers: headers(key) });
  if (!response.ok) throw await errorOf(response);
  const { data } = await response.json();
  return data.map((model) => String(model.id));
}

// {ready, reason}
export async function readiness() {
  const response = await call('/ready', {});
  if (response.ok) return { ready: true, reason: '' };
  let reason = '';
  try { reason = JSON.parse(await response.text()).status || ''; } catch { /* the status code says enough */ }
  return { ready: false, reason: String(reason) };
}

export async function serverVersion() {
  const response = await call('/version', {});
  return response.ok ? String((await response.json()).version || '') : '';
}

// Sends a chat completion and yields its chunks as they arrive. Ends normally only after the answer's end was seen
// ([DONE] or a finish reason); a connection that breaks off before is an ApiError.
export async function* streamChat(body, { key, signal }) {
  const response = await call('/v1/chat/completions', {
    method: 'POST', signal, headers: headers(key, { 'content-type': 'application/json' }), body: JSON.stringify(body),
  });
  if (!response.ok) throw await errorOf(response);
  if (!(response.headers.get('content-type') || '').startsWith('text/event-stream')) {
    throw new ApiError('The answer is no event stream. Is something else listening at this address?', { status: 502 });
  }
  let ended = false;
  try {
    for await (const { data } of readEvents(response.body)) {
      if (data === '[DONE]') { ended = true; continue; }
      let chunk;
      try { chunk = JSON.parse(data); } catch { throw new ApiError('The server sent an event that is no JSON.', { status: 502 }); }
      if (chunk.error) {
        throw new ApiError(String(chunk.error.message || 'The answer broke off.'),
          { status: Number(chunk.error.status) || 500, code: String(chunk.error.code || '') });
      }
      if (chunk.choices && chunk.choices.some((choice) => choice.finish_reason)) ended = true;
      yield chunk;
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiError) throw error;
    throw new ApiError('The connection broke while the answer was coming.', { isNetwork: true });
  }
  if (!ended) throw new ApiError('The connection ended before the answer did.', { isNetwork: true });
}
