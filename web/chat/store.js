// Conversations in this browser: IndexedDB (images make them too large for localStorage). Two object stores, so that
// the list needs no bodies: `heads` {id, title, titled, created_ms, updated_ms}, `bodies` {id, messages}.
// Without IndexedDB (some private windows) they live in memory until the page closes; `isVolatile` says so.

const DATABASE = 'deepinfer';
const EXPORT_FORMAT = 'deepinfer-conversations';
const IMAGE_URL = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+=*$/;

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

export class Store {
  static async open() {
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore('heads', { keyPath: 'id' });
        request.result.createObjectStore('bodies', { keyPath: 'id' });
      };
      return new Store(await done(request));
    } catch {
      return new Store(null);
    }
  }

  constructor(database) {
    this.database = database;
    this.isVolatile = database === null;
    this.memory = new Map();
    this.channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel(DATABASE);
  }

  // `listener(id or null)` runs when another tab changed a conversation (null: any).
  onChange(listener) {
    if (this.channel) this.channel.onmessage = (event) => listener(event.data);
  }

  // Newest first.
  async list() {
    const heads = this.isVolatile ? [...this.memory.values()].map(head)
      : await done(this.database.transaction('heads').objectStore('heads').getAll());
    return heads.sort((a, b) => b.updated_ms - a.updated_ms);
  }

  async get(id) {
    if (this.isVolatile) return structuredClone(this.memory.get(id)) || null;
    const transaction = this.database.transaction(['heads', 'bodies']);
    const [top, body] = await Promise.all(
      [done(transaction.objectStore('heads').get(id)), done(transaction.objectStore('bodies').get(id))]);
    return top && body ? { ...top, messages: body.messages } : null;
  }

  async put(conversation) {
    if (this.isVolatile) {
      this.memory.set(conversation.id, structuredClone(conversation));
    } else {
      await this.write((heads, bodies) => {
        heads.put(head(conversation));
        bodies.put({ id: conversation.id, messages: conversation.messages });
      });
    }
    this.channel?.postMessage(conversation.id);
  }

  async remove(id) {
    if (this.isVolatile) this.memory.delete(id);
    else await this.write((heads, bodies) => { heads.delete(id); bodies.delete(id); });
    this.channel?.postMessage(id);
  }

  async clear() {
    if (this.isVolatile) this.memory.clear();
    else await this.write((heads, bodies) => { heads.clear(); bodies.clear(); });
    this.channel?.postMessage(null);
  }

  write(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(['heads', 'bodies'], 'readwrite');
      transaction.oncomplete = resolve;
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
      change(transaction.objectStore('heads'), transaction.objectStore('bodies'));
    });
  }

  async exportText(id = null) {
    const ids = id ? [id] : (await this.list()).map((entry) => entry.id);
    const conversations = [];
    for (const each of ids) conversations.push(await this.get(each));
    return JSON.stringify({ format: EXPORT_FORMAT, version: 1, conversations: conversations.filter(Boolean) }, null, 1);
  }

  // Adds what exportText wrote; every conversation gets a new id, so nothing is overwritten. Returns how many.
  async importText(text) {
    const conversations = parseExport(text);
    for (const conversation of conversations) await this.put(conversation);
    return conversations.length;
  }
}

const head = ({ id, title, titled, created_ms, updated_ms }) => ({ id, title, titled, created_ms, updated_ms });

export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, '0')).join('');

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: 'New conversation', titled: false, created_ms: now, updated_ms: now, messages: [] };
}

// Reads an exported file. It may come from anywhere, so only known fields of the right type are taken; whatever else is
// in there is left out, and a file of another kind is refused in a sentence.
export function parseExport(text) {
  let document;
  try { document = JSON.parse(text); } catch { throw new Error('This file is not JSON.'); }
  if (document?.format !== EXPORT_FORMAT) throw new Error('This file holds no conversations of this page.');
  if (document.version !== 1) throw new Error(`This file has version ${document.version}; this page reads version 1.`);
  if (!Array.isArray(document.conversations)) throw new Error('This file has no list of conversations.');
  return document.conversations.map((entry, index) => {
    if (!Array.isArray(entry?.messages)) throw new Error(`Conversation ${index + 1} has no messages.`);
    return {
      id: newId(),
      title: text_(entry.title).slice(0, 200) || 'Imported conversation',
      titled: true,
      created_ms: number(entry.created_ms) ?? Date.now(),
      updated_ms: number(entry.updated_ms) ?? Date.now(),
      messages: entry.messages.map((message) => cleanMessage(message, index)),
    };
  });
}

const text_ = (value) => (typeof value === 'string' ? value : '');
const number = (value) => (Number.isFinite(value) ? value : null);

function cleanMessage(message, index) {
  if (!['user', 'assistant', 'tool'].includes(message?.role)) {
    throw new Error(`Conversation ${index + 1} has a message whose role is neither user, assistant nor tool.`);
  }
  const out = { id: newId(), role: message.role, text: text_(message.text) };
  if (message.role === 'tool') out.call_id = text_(message.call_id);
  if (message.role === 'user' && Array.isArray(message.images)) {
    out.images = message.images.filter((image) => IMAGE_URL.test(text_(image?.url)))
      .map((image) => ({ name: text_(image.name).slice(0, 200), url: image.url }));
  }
  if (message.role === 'assistant') {
    Object.assign(out, { reasoning: text_(message.reasoning), model: text_(message.model), finish: text_(message.finish) });
    out.calls = (Array.isArray(message.calls) ? message.calls : []).map((call) => ({
      id: text_(call?.id), name: text_(call?.name), arguments: text_(call?.arguments) }));
    out.stats = {};
    for (const [name, value] of Object.entries(message.stats || {})) {
      if (STATS.includes(name) && number(value) !== null) out.stats[name] = value;
    }
  }
  return out;
}

const STATS = ['prompt_tokens', 'cached_tokens', 'completion_tokens', 'reasoning_tokens', 'first_token_ms',
  'thinking_ms', 'total_ms'];
