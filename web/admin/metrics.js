// Reads the text that Prometheus reads, and makes rates and quantiles of two readings.

// A reading: Map from sample name to [{labels, value}]. Lines that are no samples are skipped.
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split('\n')) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] || '').matchAll(/([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === 'n' ? '\n' : c));
    }
    const number = match[3] === '+Inf' ? Infinity : match[3] === '-Inf' ? -Infinity : Number(match[3]);
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({ labels, value: number });
  }
  return samples;
}

// The sum over all labels, or null if there is no such sample.
export function total(reading, name) {
  const rows = reading.get(name);
  return rows ? rows.reduce((sum, row) => sum + row.value, 0) : null;
}

// What a counter grew by; null if it is missing or began anew.
export function growth(before, now, name) {
  const a = before && total(before, name);
  const b = total(now, name);
  return a === null || a === undefined || b === null || b < a ? null : b - a;
}

// Growth of one counter over that of another, null where nothing grew.
export function ratio(before, now, part, whole) {
  const a = growth(before, now, part);
  const b = growth(before, now, whole);
  return a === null || !b ? null : a / b;
}

// The q-quantile of what a histogram got between two readings, linear within its bucket; null if nothing came.
export function quantile(before, now, name, q) {
  const buckets = new Map();
  const add = (reading, sign) => {
    for (const { labels, value } of reading?.get(name + '_bucket') || []) {
      const bound = labels.le === '+Inf' ? Infinity : Number(labels.le);
      buckets.set(bound, (buckets.get(bound) || 0) + sign * value);
    }
  };
  add(now, 1);
  add(before, -1);
  const rows = [...buckets].sort((a, b) => a[0] - b[0]);
  const all = rows.length ? rows.at(-1)[1] : 0;
  if (!(all > 0)) return null;
  const wanted = q * all;
  let lowBound = 0;
  let lowCount = 0;
  for (const [bound, count] of rows) {
    if (count >= wanted) {
      if (bound === Infinity || count === lowCount) return lowBound;
      return lowBound + (bound - lowBound) * (wanted - lowCount) / (count - lowCount);
    }
    lowBound = bound;
    lowCount = count;
  }
  return lowBound;
}
