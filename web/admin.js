// The operation page: live load, cache and acceptance figures of this server, from /admin/status (counts, requests) and
// /metrics (times, routes, memory). Reads every two seconds while the page is in sight; rates and quantiles are those of the time between readings.
import { announce, byId, confirmDialog, h } from './dom.js';
import { chooseTheme, shownTheme } from './theme.js';
import { growth, parseMetrics, quantile, ratio, total } from './admin/metrics.js';
import { Tile } from './admin/sparkline.js';

const PERIOD_MS = 2000;
const WINDOW = 15;  // readings over which shares and quantiles are taken: half a minute
const API_KEY = 'deepinfer.admin-key';

const number = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(value % 1 ? 1 : 0));
const percent = (share) => (100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0) + ' %';
const time = (s) => (s < 0.001 ? `${(s * 1e6).toFixed(0)} µs` : s < 1 ? `${(s * 1e3).toFixed(s < 0.1 ? 1 : 0)} ms` : `${s.toFixed(s < 10 ? 2 : 1)} s`);
const bytes = (n) => { const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']; let u = 0; while (n >= 1024 && u < 4) { n /= 1024; ++u; } return `${n.toFixed(u ? 1 : 0)} ${units[u]}`; };

const tiles = {
  running: new Tile('Running', { format: number }),
  waiting: new Tile('Waiting', { format: number }),
  output: new Tile('Generated tokens / s', { format: number }),
  prompt: new Tile('Prompt tokens / s', { format: number }),
  cacheHits: new Tile('Prefix cache hits', { format: percent, max: 1 }),
  cacheUse: new Tile('Cache in use', { format: percent, max: 1 }),
  acceptance: new Tile('Drafts accepted', { format: percent, max: 1 }),
  firstToken: new Tile('First token, median', { format: time }),
  nextToken: new Tile('Next token, median', { format: time }),
  step: new Tile('Time of a step', { format: time }),
  answers: new Tile('Answers / s', { format: number }),
  memory: new Tile('Memory', { format: bytes }),
};
byId('tiles').append(...Object.values(tiles).map((tile) => tile.element));

let key = '';
try { key = sessionStorage.getItem(API_KEY) || ''; } catch { /* the key is asked for again */ }
const history = [];  // [{time_ms, reading}], the last WINDOW + 1

async function get(path, method = 'GET') {
  const response = await fetch(path, { method, credentials: 'omit', cache: 'no-store',
    headers: { ...(key ? { authorization: 'Bearer ' + key } : {}), ...(method === 'POST' ? { 'content-type': 'application/json' } : {}) },
    body: method === 'POST' ? '{}' : undefined });
  if (response.ok) return response;
  let message = `HTTP ${response.status}`;
  try { message = (await response.json()).error.message || message; } catch { /* the status says it */ }
  throw Object.assign(new Error(message), { status: response.status });
}

// Puts the numbers of /admin/status beside those of /metrics, as "engine.running", "generation.prompt_tokens" and so on.
function withStatus(reading, status) {
  for (const part of ['engine', 'generation', 'http']) {
    for (const [name, value] of Object.entries(status[part] || {})) {
      if (typeof value === 'number') reading.set(`${part}.${name}`, [{ labels: {}, value }]);
    }
  }
  const outcomes = Object.entries(status.generation?.outcomes || {});
  reading.set('outcomes', outcomes.map(([reason, value]) => ({ labels: { reason }, value })));
  return reading;
}

function show(reading) {
  const now = { time_ms: performance.now(), reading };
  const last = history.at(-1);
  const far = history[0];
  history.push(now);
  if (history.length > WINDOW + 1) history.shift();
  const elapsed_s = last ? (now.time_ms - last.time_ms) / 1000 : 0;
  const before = far?.reading;
  const perSecond = (name) => { const g = last && growth(last.reading, reading, name); return g === null || !last ? null : g / elapsed_s; };
  const whole = (part, all) => { const b = total(reading, all); return b ? total(reading, part) / b : null; };
  const since = (share) => (share === null ? 'nothing looked up yet' : `${percent(share)} since the start`);

  tiles.running.add(total(reading, 'engine.running'), `${number(total(reading, 'http.connections') || 0)} connections`);
  tiles.waiting.add(total(reading, 'engine.waiting'), `${number(total(reading, 'engine.preemptions') || 0)} preemptions`);
  tiles.output.add(perSecond('generation.generation_tokens'), `${number(total(reading, 'generation.generation_tokens') || 0)} in all`);
  tiles.prompt.add(perSecond('generation.prompt_tokens'), `${number(total(reading, 'generation.prompt_tokens') || 0)} in all`);
  tiles.cacheHits.add(ratio(before, reading, 'engine.prefix_hit_tokens', 'engine.prefix_query_tokens'),
    since(whole('engine.prefix_hit_tokens', 'engine.prefix_query_tokens')));
  const blocks = total(reading, 'engine.total_blocks');
  const free = total(reading, 'engine.free_blocks');
  tiles.cacheUse.add(blocks ? 1 - free / blocks : null, blocks ? `${number(blocks - free)} of ${number(blocks)} blocks` : '');
  showAcceptance(before, reading);
  for (const [tile, name] of [[tiles.firstToken, 'vllm:time_to_first_token_seconds'], [tiles.nextToken, 'vllm:inter_token_latency_seconds']]) {
    const slow = quantile(before, reading, name, 0.95);
    tile.add(quantile(before, reading, name, 0.5), slow === null ? 'no request of late' : `95 % within ${time(slow)}`);
  }
  const step_us = last && ratio(last.reading, reading, 'engine.step_us', 'engine.steps');
  const steps = perSecond('engine.steps');
  tiles.step.add(step_us === null || step_us === undefined ? null : step_us / 1e6, steps === null ? '' : `${number(steps)} steps / s`);
  tiles.answers.add(perSecond('deepinfer_http_requests_total'), `${number(total(reading, 'deepinfer_http_requests_total') || 0)} in all`);
  tiles.memory.add(total(reading, 'process_resident_memory_bytes'), 'resident');
  showFinishes(reading);
  showRoutes(reading);
}

function showAcceptance(before, reading) {
  const drafted = total(reading, 'vllm:spec_decode_num_draft_tokens_total');
  tiles.acceptance.element.hidden = drafted === null;  // a server that does not draft has no such figure
  if (drafted === null) return;
  const accepted = total(reading, 'vllm:spec_decode_num_accepted_tokens_total');
  const drafts = total(reading, 'vllm:spec_decode_num_drafts_total');
  tiles.acceptance.add(ratio(before, reading, 'vllm:spec_decode_num_accepted_tokens_total', 'vllm:spec_decode_num_draft_tokens_total'),
    drafts ? `${(1 + accepted / drafts).toFixed(2)} tokens a step` : 'no drafts yet');
}

const FINISHES = { stop: 'by themselves', length: 'token limit', tool_calls: 'tool calls', abort: 'taken back', error: 'failed' };

function showFinishes(reading) {
  const rows = reading.get('outcomes').map(({ labels, value }) => [labels.reason, value]);
  const most = Math.max(1, ...rows.map(([, value]) => value));
  byId('finishes').replaceChildren(...rows.map(([reason, value]) => h('div', { class: 'bar-row' },
    h('span', { text: FINISHES[reason] || reason }),
    h('meter', { min: 0, max: most, value, 'aria-label': FINISHES[reason] || reason }),
    h('span', { class: 'count', text: number(value) }))));
}

function table(target, columns, rows, nothing) {
  target.replaceChildren(
    h('thead', {}, h('tr', {}, ...columns.map((column) => h('th', { scope: 'col', class: column.isNumber ? 'number' : '', text: column.title })))),
    h('tbody', {}, ...rows.map((row) => h('tr', {}, ...columns.map((column) =>
      h('td', { class: column.isNumber ? 'number' : '', text: column.value(row) }))))));
  if (!rows.length) target.append(h('caption', { class: 'note', text: nothing }));
}

function showRoutes(reading) {
  const rows = (reading.get('deepinfer_http_requests_total') || []).map(({ labels, value }) => ({ ...labels, value }));
  rows.sort((a, b) => b.value - a.value);
  table(byId('http'), [
    { title: 'Route', value: (row) => row.route },
    { title: 'Status', value: (row) => row.status, isNumber: true },
    { title: 'Answers', value: (row) => number(row.value), isNumber: true },
  ], rows.slice(0, 100), 'No request yet.');
}

function showLive(requests) {
  const text = (value) => (value === undefined || value === null || value === '' ? '–' : String(value));
  table(byId('live'), [
    { title: 'Request', value: (row) => text(row.id) },
    { title: 'Route', value: (row) => text(row.route) },
    { title: 'Key', value: (row) => text(row.key) },
    { title: 'Age', value: (row) => (Number.isFinite(row.seconds) ? time(row.seconds) : '–'), isNumber: true },
    { title: 'Prompt', value: (row) => text(row.prompt_tokens), isNumber: true },
    { title: 'Generated', value: (row) => text(row.completion_tokens), isNumber: true },
  ], requests.slice(0, 500), 'Nothing is in progress.');
}

function showStatus(status) {
  const phase = byId('phase');
  phase.textContent = String(status.phase);
  phase.dataset.phase = phase.textContent;
  const facts = [];
  if (Array.isArray(status.models) && status.models.length) facts.push(status.models.join(', '));
  if (status.version) facts.push(`version ${status.version}`);
  if (status.started) facts.push(`up ${duration(status.now - status.started)}`);
  byId('facts').textContent = facts.join(' · ');
}

function duration(s) {
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} days`;
}

function flatten(value, name = '') {
  if (value === null || typeof value !== 'object') return [[name, String(value)]];
  if (Array.isArray(value) && value.every((each) => each === null || typeof each !== 'object')) return [[name, value.join(', ')]];
  return Object.entries(value).flatMap(([key_, each]) => flatten(each, name ? `${name}.${key_}` : key_));
}

async function showConfig() {
  const rows = flatten(await (await get('/admin/config')).json());
  table(byId('config'), [{ title: 'Option', value: (row) => row[0] }, { title: 'Value', value: (row) => row[1] }], rows, 'Nothing.');
}

function complain(error) {
  const banner = byId('banner');
  banner.hidden = !error;
  if (!error) return;
  const needsKey = error.status === 401 || error.status === 403;
  const text = error.status === undefined ? 'The server does not answer. Figures go on when it is back.'
    : needsKey ? `${error.message} A key with the scopes “metrics” and “admin” opens this page.` : error.message;
  banner.replaceChildren(h('span', { text }));
  if (needsKey) banner.append(h('button', { type: 'button', class: 'button', text: 'Enter a key', on: { click: askForKey } }));
}

let timer = 0;
async function refresh() {
  clearTimeout(timer);
  if (!document.hidden) {
    try {
      const status = await (await get('/admin/status')).json();
      showStatus(status);
      showLive(status.requests || []);
      show(withStatus(parseMetrics(await (await get('/metrics')).text()), status));
      complain(null);
    } catch (error) {
      complain(error);
      if (error.status === undefined) byId('phase').textContent = 'no answer';
      byId('phase').dataset.phase = byId('phase').textContent;
    }
  }
  timer = setTimeout(refresh, PERIOD_MS);
}

function askForKey() {
  byId('key').value = key;
  byId('key-dialog').showModal();
  byId('key').focus();
}
byId('open-key').addEventListener('click', askForKey);
byId('key-dialog').addEventListener('close', () => {
  if (byId('key-dialog').returnValue !== 'ok') return;
  key = byId('key').value.trim();
  try {
    if (byId('remember').checked && key) sessionStorage.setItem(API_KEY, key);
    else sessionStorage.removeItem(API_KEY);
  } catch { /* it stays in memory */ }
  refresh();
});

const QUESTIONS = {
  drain: ['Drain this server?', '/ready says “draining”, so load balancers send nothing more; what still arrives is answered. “Serve again” takes it back.', 'Drain'],
};
for (const button of document.querySelectorAll('[data-action]')) {
  button.addEventListener('click', async () => {
    const action = button.dataset.action;
    if (QUESTIONS[action] && !await confirmDialog(...QUESTIONS[action])) return;
    let text = 'Done.';
    try { await get('/admin/' + action, 'POST'); } catch (error) { text = error.status === undefined ? 'The server does not answer.' : error.message; }
    byId('action-note').textContent = `${button.textContent.replace('…', '')}: ${text}`;
    announce(text);
    refresh();
  });
}
byId('config-box').addEventListener('toggle', () => { if (byId('config-box').open) showConfig().catch(complain); });

function drawThemeButton() {
  byId('toggle-theme').querySelector('use').setAttribute('href', shownTheme() === 'dark' ? '#i-sun' : '#i-moon');
}
byId('toggle-theme').addEventListener('click', () => { chooseTheme(shownTheme() === 'dark' ? 'light' : 'dark'); drawThemeButton(); });
drawThemeButton();
addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
await refresh();
document.documentElement.dataset.state = 'ready';
