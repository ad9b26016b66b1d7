// One answer being made: sends the conversation, adds what arrives to its message, measures.
import { ApiError, streamChat } from './api.js';

export const emptyAnswer = (id, model) => ({
  id, role: 'assistant', text: '', reasoning: '', calls: [], model, finish: '', trouble: null, stats: {},
});

export class Generation {
  constructor() {
    this.controller = new AbortController();
    this.isStopped = false;
  }

  stop() {
    this.isStopped = true;
    this.controller.abort();
  }

  // Fills `message` (emptyAnswer) and calls `onChange` after each piece. Never throws: what went wrong stands in
  // message.trouble, and message.finish is set in any case.
  async run(body, key, message, onChange) {
    const start = performance.now();
    const since = () => Math.round(performance.now() - start);
    let finish = '';
    try {
      for await (const chunk of streamChat(body, { key, signal: this.controller.signal })) {
        if (chunk.usage) takeUsage(message.stats, chunk.usage);
        if (chunk.model) message.model = String(chunk.model);
        const choice = chunk.choices?.[0];
        if (choice && takeDelta(message, choice.delta || {})) {
          message.stats.first_token_ms ??= since();
          message.stats.total_ms = since();
          if (message.reasoning && (message.text || message.calls.length)) message.stats.thinking_ms ??= since();
        }
        if (choice?.finish_reason) finish = String(choice.finish_reason);
        onChange();
      }
      message.finish = finish || 'stop';
    } catch (error) {
      message.finish = this.isStopped ? 'stopped' : 'error';
      if (!this.isStopped) message.trouble = troubleOf(error);
    }
    if (message.reasoning) message.stats.thinking_ms ??= since();
    if (this.isStopped) message.stats.total_ms = since();
    onChange();
  }
}

function troubleOf(error) {
  const known = error instanceof ApiError ? error : new ApiError(String(error?.message || error), { status: 500 });
  return { ...known.advice(), detail: known.message };
}

// Adds a delta; whether it brought any text.
function takeDelta(message, delta) {
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  let brought = false;
  if (typeof reasoning === 'string' && reasoning) { message.reasoning += reasoning; brought = true; }
  if (typeof delta.content === 'string' && delta.content) { message.text += delta.content; brought = true; }
  for (const part of Array.isArray(delta.tool_calls) ? delta.tool_calls : []) {
    const index = Number.isInteger(part.index) && part.index >= 0 && part.index < 1024 ? part.index : message.calls.length;
    while (message.calls.length <= index) message.calls.push({ id: '', name: '', arguments: '' });
    const call = message.calls[index];
    if (part.id) call.id = String(part.id);
    if (part.function?.name) call.name = String(part.function.name);
    if (part.function?.arguments) call.arguments += String(part.function.arguments);
    brought = true;
  }
  return brought;
}

function takeUsage(stats, usage) {
  const set = (name, value) => { if (Number.isFinite(value)) stats[name] = value; };
  set('prompt_tokens', usage.prompt_tokens);
  set('cached_tokens', usage.prompt_cache_hit_tokens ?? usage.prompt_tokens_details?.cached_tokens);
  set('completion_tokens', usage.completion_tokens);
  set('reasoning_tokens', usage.completion_tokens_details?.reasoning_tokens);
}
