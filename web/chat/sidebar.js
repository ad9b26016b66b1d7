// The list of kept conversations: open, rename, export, delete, search by title.
import { byId, confirmDialog, download, h, iconButton } from '../dom.js';

const DAY_MS = 86_400_000;

export class Sidebar {
  // onOpen(id), onNew(), onRemoved(id): what the page does about them.
  constructor(store, { onOpen, onNew, onRemoved }) {
    Object.assign(this, { store, onOpen, onRemoved });
    this.list = byId('conversations');
    this.heads = [];
    this.currentId = '';
    byId('volatile').hidden = !store.isVolatile;
    byId('new-chat').addEventListener('click', () => { onNew(); this.closeIfNarrow(); });
    byId('filter').addEventListener('input', () => this.draw());
    byId('open-sidebar').addEventListener('click', () => this.toggle());
    byId('close-sidebar').addEventListener('click', () => this.toggle(false));
    byId('shade').addEventListener('click', () => this.toggle(false));
    this.narrow = matchMedia('(max-width: 860px)');
    this.narrow.addEventListener('change', () => this.toggle(!this.narrow.matches));
    this.toggle(!this.narrow.matches);
  }

  toggle(open = !this.isOpen) {
    this.isOpen = open;
    document.body.classList.toggle('sidebar-open', open);
    byId('open-sidebar').setAttribute('aria-expanded', String(open));
    byId('sidebar').inert = !open;
    byId('shade').hidden = !open || !this.narrow.matches;
    if (open && this.narrow.matches) byId('close-sidebar').focus();
  }

  closeIfNarrow() {
    if (this.narrow.matches && this.isOpen) { this.toggle(false); byId('input').focus(); }
  }

  async refresh(currentId = this.currentId) {
    this.currentId = currentId;
    this.heads = await this.store.list();
    this.draw();
  }

  draw() {
    const wanted = byId('filter').value.trim().toLowerCase();
    const heads = this.heads.filter((entry) => entry.title.toLowerCase().includes(wanted));
    const groups = new Map();
    for (const entry of heads) {
      const name = ageName(entry.updated_ms);
      groups.set(name, [...(groups.get(name) || []), entry]);
    }
    this.list.replaceChildren(...[...groups].flatMap(([name, entries]) =>
      [h('h2', { class: 'group', text: name }), h('ul', {}, ...entries.map((entry) => this.item(entry)))]));
    if (!heads.length) {
      this.list.append(h('p', { class: 'note', text: wanted ? 'No title has that.' : 'Nothing kept yet.' }));
    }
  }

  item(entry) {
    const isCurrent = entry.id === this.currentId;
    const open = h('button', { type: 'button', class: 'title', text: entry.title, title: entry.title,
      'aria-current': isCurrent ? 'true' : null, on: { click: () => { this.onOpen(entry.id); this.closeIfNarrow(); } } });
    const item = h('li', { class: isCurrent ? 'item current' : 'item' }, open,
      iconButton('edit', `Rename “${entry.title}”`, () => this.rename(entry, item)),
      iconButton('export', `Export “${entry.title}”`, async () =>
        download('deepinfer-conversation.json', await this.store.exportText(entry.id))),
      iconButton('trash', `Delete “${entry.title}”`, () => this.remove(entry)));
    return item;
  }

  rename(entry, item) {
    const field = h('input', { class: 'field', value: entry.title, 'aria-label': 'Title', maxLength: 200 });
    let isOver = false;
    const end = async (keep) => {
      if (isOver) return;
      isOver = true;
      const title = field.value.trim();
      const conversation = keep && title ? await this.store.get(entry.id) : null;
      if (conversation) await this.store.put({ ...conversation, title, titled: true });
      await this.refresh();
      this.onRenamed?.(entry.id, title);
    };
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') end(true);
      if (event.key === 'Escape') { event.stopPropagation(); end(false); }
    });
    field.addEventListener('blur', () => end(true));
    item.replaceChildren(field);
    field.select();
  }

  async remove(entry) {
    if (!await confirmDialog('Delete this conversation?', entry.title, 'Delete')) return;
    await this.store.remove(entry.id);
    await this.refresh();
    this.onRemoved(entry.id);
  }
}

function ageName(time_ms) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time_ms >= midnight) return 'Today';
  if (time_ms >= midnight - DAY_MS) return 'Yesterday';
  if (time_ms >= midnight - 7 * DAY_MS) return 'Last seven days';
  return new Date(time_ms).toLocaleDateString('en', { year: 'numeric', month: 'long' });
}
