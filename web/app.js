// A plain chat page: sends the conversation to /v1/chat/completions and shows the answer as it comes. Everything the
// model writes is put into the page as text, never as markup.
'use strict';

const $ = (id) => document.getElementById(id);
let messages = [];
let running = null;

function headers() {
  const out = { 'content-type': 'application/json' };
  if ($('key').value) out.authorization = 'Bearer ' + $('key').value;
  return out;
}

function show(kind, text) {
  const turn = document.createElement('div');
  turn.className = 'turn ' + kind;
  turn.textContent = text;
  $('log').append(turn);
  turn.scrollIntoView({ block: 'end' });
  return turn;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const line = text.slice(0, end);
      if (!line.startsWith('data: ') || line === 'data: [DONE]') continue;
      yield JSON.parse(line.slice(6));
    }
  }
}

async function ask(text) {
  messages.push({ role: 'user', content: text });
  show('user', text);
  const reasoning = show('reasoning', '');
  const answer = show('assistant', '');
  running = new AbortController();
  $('send').hidden = true;
  $('stop').hidden = false;
  try {
    const response = await fetch('/v1/chat/completions', {
      method: 'POST', headers: headers(), signal: running.signal,
      body: JSON.stringify({
        model: $('model').value, messages, stream: true, stream_options: { include_usage: true },
        thinking: { type: $('thinking').checked ? 'enabled' : 'disabled' },
      }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices.length ? event.choices[0].delta : {};
      if (delta.reasoning_content) reasoning.textContent += delta.reasoning_content;
      if (delta.content) answer.textContent += delta.content;
      if (event.usage) {
        $('status').textContent = `${event.usage.prompt_tokens} prompt tokens (${event.usage.prompt_cache_hit_tokens} cached), ` +
          `${event.usage.completion_tokens} generated`;
      }
      answer.scrollIntoView({ block: 'end' });
    }
  } catch (error) {
    if (error.name !== 'AbortError') show('error', error.message);
  } finally {
    if (answer.textContent) messages.push({ role: 'assistant', content: answer.textContent });
    else { messages.pop(); answer.remove(); }
    if (!reasoning.textContent) reasoning.remove();
    running = null;
    $('send').hidden = false;
    $('stop').hidden = true;
  }
}

async function loadModels() {
  const response = await fetch('/v1/models', { headers: headers() });
  if (!response.ok) { $('status').textContent = 'This server wants an API key.'; return; }
  $('status').textContent = '';
  $('model').replaceChildren(...(await response.json()).data.map((m) => new Option(m.id, m.id)));
}

$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('text').value.trim();
  if (!text || running) return;
  $('text').value = '';
  ask(text);
});
$('text').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey) { event.preventDefault(); $('form').requestSubmit(); }
});
$('stop').addEventListener('click', () => running && running.abort());
$('clear').addEventListener('click', () => { messages = []; $('log').replaceChildren(); });
$('key').addEventListener('change', loadModels);
loadModels();
