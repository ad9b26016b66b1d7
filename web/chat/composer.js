// The field at the bottom: text, images, send and stop.
import { byId, h, iconButton } from '../dom.js';

const IMAGE_TYPES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif'];
const MAX_IMAGE_BYTES = 12 * 1024 * 1024;     // conversations keep their images in this browser
const MAX_IMAGES_CHARS = 44 * 1024 * 1024;    // of all images of a message; a request may have 48 MiB

export class Composer {
  // onSend({text, images}) returns whether the message was taken; onEditLast() edits the newest own message.
  constructor({ onSend, onStop, onEditLast }) {
    this.input = byId('input');
    this.note = byId('composer-note');
    this.strip = byId('attachments');
    this.images = [];
    this.busy = false;
    this.onSend = onSend;
    byId('composer').addEventListener('submit', (event) => { event.preventDefault(); this.send(); });
    byId('stop').addEventListener('click', onStop);
    byId('attach').addEventListener('click', () => byId('file').click());
    byId('file').addEventListener('change', (event) => { this.attach([...event.target.files]); event.target.value = ''; });
    this.input.addEventListener('input', () => this.fit());
    this.input.addEventListener('keydown', (event) => {
      if (event.isComposing) return;  // Enter confirms a candidate of an input method
      if (event.key === 'Enter' && !event.shiftKey) { event.preventDefault(); this.send(); }
      if (event.key === 'ArrowUp' && !this.input.value && onEditLast()) event.preventDefault();
    });
    this.input.addEventListener('paste', (event) => {
      const files = [...event.clipboardData.files].filter((file) => file.type.startsWith('image/'));
      if (files.length) { event.preventDefault(); this.attach(files); }
    });
    this.acceptDrops();
    this.fit();
  }

  acceptDrops() {
    const hint = byId('drop');
    const hasFiles = (event) => [...event.dataTransfer.types].includes('Files');
    addEventListener('dragover', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      hint.hidden = false;
    });
    addEventListener('dragleave', (event) => { if (!event.relatedTarget) hint.hidden = true; });
    addEventListener('drop', (event) => {
      hint.hidden = true;
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.attach([...event.dataTransfer.files]);
    });
  }

  async attach(files) {
    this.say('');
    for (const file of files) {
      if (!IMAGE_TYPES.includes(file.type)) { this.say(`${file.name}: only PNG, JPEG, WebP and GIF images`); continue; }
      if (file.size > MAX_IMAGE_BYTES) { this.say(`${file.name}: larger than 12 MiB`); continue; }
      const url = await dataUrl(file);
      if (!url) { this.say(`${file.name} cannot be read`); continue; }
      if (this.images.reduce((sum, image) => sum + image.url.length, url.length) > MAX_IMAGES_CHARS) {
        this.say(`${file.name}: all images together are too large`);
        continue;
      }
      this.images.push({ name: file.name, url });
    }
    this.showImages();
    this.input.focus();
  }

  showImages() {
    this.strip.hidden = this.images.length === 0;
    this.strip.replaceChildren(...this.images.map((image) => h('div', { class: 'attachment' },
      h('img', { src: image.url, alt: image.name }),
      iconButton('close', `Take away ${image.name}`, () => {
        this.images = this.images.filter((other) => other !== image);
        this.showImages();
        this.input.focus();
      }))));
    this.fit();
  }

  send() {
    const text = this.input.value.trim();
    if (this.busy || (!text && !this.images.length)) return;
    if (!this.onSend({ text, images: this.images })) return;
    this.input.value = '';
    this.images = [];
    this.showImages();
    this.say('');
  }

  // Grows with its text up to a third of the window (CSS sets the bound), then scrolls.
  fit() {
    this.input.style.height = 'auto';
    this.input.style.height = this.input.scrollHeight + 'px';
    byId('send').disabled = !this.input.value.trim() && !this.images.length;
  }

  say(text) { this.note.textContent = text; }

  setBusy(busy) {
    this.busy = busy;
    const hadFocus = document.activeElement === byId('stop') || document.activeElement === byId('send');
    byId('send').hidden = busy;
    byId('stop').hidden = !busy;
    if (hadFocus) this.input.focus();
  }
}

function dataUrl(file) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => resolve(null);
    reader.readAsDataURL(file);
  });
}
