// A tile: a figure, what it means, and its last minutes as a line.
import { h, svg } from '../dom.js';

const WIDTH = 240;
const HEIGHT = 52;

export class Tile {
  // `format(value)` writes a value; `max` fixes the top of the scale (1 for shares), else it follows the data.
  constructor(title, { format, max = null, capacity = 150 }) {
    Object.assign(this, { format, max, capacity });
    this.values = [];
    this.figure = h('div', { class: 'figure', text: '–' });
    this.detail = h('div', { class: 'detail' });
    this.area = svg('path', { class: 'area' });
    this.line = svg('path', { class: 'line' });
    this.cursor = svg('line', { class: 'cursor', y1: 0, y2: HEIGHT });
    this.picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' },
      this.area, this.line, this.cursor);
    this.element = h('article', { class: 'tile' }, h('h2', { text: title }), this.figure, this.detail, this.picture);
    this.title = title;
    this.picture.addEventListener('pointermove', (event) => this.point(event));
    this.picture.addEventListener('pointerleave', () => { this.pointed = null; this.draw(); });
  }

  // Adds a reading; null: nothing to measure then (the line has a gap).
  add(value, detail = '') {
    this.values.push(value);
    if (this.values.length > this.capacity) this.values.shift();
    this.lastDetail = detail;
    this.draw();
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const index = Math.round(share * (this.capacity - 1)) - (this.capacity - this.values.length);
    this.pointed = index >= 0 && index < this.values.length ? index : null;
    this.draw();
  }

  draw() {
    const { values } = this;
    const shown = this.pointed ?? values.length - 1;
    const text = (value) => (value === null || value === undefined ? '–' : this.format(value));
    this.figure.textContent = text(values[shown]);
    this.detail.textContent = this.pointed === null || this.pointed === undefined ? this.lastDetail
      : `${(values.length - 1 - shown) * 2} s ago`;
    const known = values.filter((value) => value !== null);
    const top = this.max ?? Math.max(1e-9, ...known) * 1.1;
    const x = (i) => (WIDTH * (i + this.capacity - values.length) / (this.capacity - 1)).toFixed(1);
    const y = (value) => (HEIGHT - 2 - (HEIGHT - 4) * Math.min(1, value / top)).toFixed(1);
    let line = '';
    let area = '';
    let start = null;
    values.forEach((value, i) => {
      if (value === null) { start = null; return; }
      line += `${start === null ? 'M' : 'L'}${x(i)} ${y(value)}`;
      start ??= i;
      if (i + 1 === values.length || values[i + 1] === null) {
        area += `M${x(start)} ${HEIGHT}` + values.slice(start, i + 1).map((v, k) => `L${x(start + k)} ${y(v)}`).join('') + `L${x(i)} ${HEIGHT}Z`;
      }
    });
    this.line.setAttribute('d', line);
    this.area.setAttribute('d', area);
    const mark = this.pointed ?? null;
    this.cursor.setAttribute('visibility', mark === null ? 'hidden' : 'visible');
    if (mark !== null) { this.cursor.setAttribute('x1', x(mark)); this.cursor.setAttribute('x2', x(mark)); }
    this.picture.setAttribute('aria-label', known.length
      ? `${this.title}: lowest ${this.format(Math.min(...known))}, highest ${this.format(Math.max(...known))}` : `${this.title}: nothing yet`);
  }
}
