// The settings sheet. Every change holds at once; a value that the server would refuse is marked, and nothing is sent
// until it is put right.
import { byId, confirmDialog, download } from '../dom.js';
import { chooseTheme, themeChoice } from '../theme.js';
import { serverVersion } from './api.js';
import * as config from './settings.js';

const FIELDS = ['system', 'temperature', 'top_p', 'max_tokens', 'seed', 'tools', 'extra'];

export class SettingsDialog {
  // onKey(): the key changed; onData(): conversations were added or deleted; onTheme(): light or dark changed.
  constructor(store, { onKey, onData, onTheme }) {
    this.dialog = byId('settings');
    this.store = store;
    byId('open-settings').addEventListener('click', () => this.open());
    this.dialog.addEventListener('click', (event) => { if (event.target === this.dialog) this.dialog.close(); });
    for (const name of FIELDS) byId('set-' + name).addEventListener('input', () => this.take());
    byId('reset-settings').addEventListener('click', () => {
      config.saveSettings(config.defaultsExcept(['model', 'thinking']));
      this.fill();
    });
    const takeKey = () => { config.setApiKey(byId('set-key').value, byId('remember-key').checked); };
    byId('set-key').addEventListener('input', takeKey);
    byId('set-key').addEventListener('change', onKey);
    byId('remember-key').addEventListener('change', takeKey);
    byId('theme-choice').addEventListener('change', (event) => { chooseTheme(event.target.value); onTheme(); });
    byId('export-all').addEventListener('click', async () =>
      download('deepinfer-conversations.json', await store.exportText()));
    byId('import').addEventListener('click', () => byId('import-file').click());
    byId('import-file').addEventListener('change', async (event) => {
      const [file] = event.target.files;
      event.target.value = '';
      if (!file) return;
      try {
        const added = await store.importText(await file.text());
        this.say(`${added} conversation${added === 1 ? '' : 's'} added.`);
        onData();
      } catch (error) { this.say(error.message); }
    });
    byId('delete-all').addEventListener('click', async () => {
      const sure = await confirmDialog('Delete all conversations?',
        'They are kept in this browser only: what was not exported is lost.', 'Delete all');
      if (!sure) return;
      await store.clear();
      this.say('All conversations are deleted.');
      onData();
    });
  }

  open(field = null) {
    this.fill();
    this.say('');
    this.dialog.showModal();
    if (field) {
      const box = byId(field).closest('details');
      if (box) box.open = true;
      byId(field).focus();
    }
    serverVersion().then((version) => { byId('version').textContent = version && `deepinfer ${version}`; }).catch(() => {});
  }

  fill() {
    for (const name of FIELDS) byId('set-' + name).value = config.settings[name];
    byId('set-key').value = config.getApiKey();
    byId('remember-key').checked = config.isKeyRemembered();
    for (const radio of byId('theme-choice').querySelectorAll('input')) radio.checked = radio.value === themeChoice();
    if (config.settings.tools || config.settings.extra) this.dialog.querySelector('.more').open = true;
    this.take();
  }

  take() {
    const values = Object.fromEntries(FIELDS.map((name) => [name, byId('set-' + name).value]));
    const wrong = config.problems(values);
    for (const name of FIELDS) {
      const mark = byId('err-' + name);
      if (mark) mark.textContent = wrong[name] || '';
      byId('set-' + name).toggleAttribute('aria-invalid', Boolean(wrong[name]));
    }
    config.saveSettings(values);
  }

  say(text) { byId('data-note').textContent = text; }
}
