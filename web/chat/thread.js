// The open conversation on the page: its messages in order, and the place the reader has scrolled to.
import { AnswerView, ToolView, UserView } from './message_view.js';

const NEAR_PX = 80;  // so close to the end counts as being there

export class Thread {
  // `actions` as message_view.js describes them.
  constructor(root, scroller, empty, toEnd, actions) {
    Object.assign(this, { root, scroller, empty, toEnd, actions });
    this.views = new Map();
    this.follows = true;  // the end stays in sight while an answer grows
    scroller.addEventListener('scroll', () => {
      this.follows = this.distance() < NEAR_PX;
      this.toEnd.hidden = this.follows;
    }, { passive: true });
    toEnd.addEventListener('click', () => this.scrollToEnd());
    new ResizeObserver(() => this.grown()).observe(root);
  }

  distance() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight;
  }

  show(conversation) {
    this.root.replaceChildren();
    this.views.clear();
    conversation.messages.forEach((message) => this.add(message));
    this.refresh(conversation);
    this.scrollToEnd();
  }

  add(message) {
    const view = message.role === 'user' ? new UserView(message, this.actions)
      : message.role === 'tool' ? new ToolView(message)
        : new AnswerView(message, this.actions, () => this.grown());
    this.views.set(message.id, view);
    this.root.append(view.element);
    this.empty.hidden = true;
    return view;
  }

  view(message) { return this.views.get(message.id); }

  // Takes away what is no longer in the conversation and asks for tool results where they are due.
  refresh(conversation) {
    const ids = new Set(conversation.messages.map((message) => message.id));
    for (const [id, view] of this.views) {
      if (ids.has(id)) continue;
      view.element.remove();
      this.views.delete(id);
    }
    this.empty.hidden = conversation.messages.length > 0;
    if (waitsForResults(conversation)) this.view(conversation.messages.at(-1)).askForResults();
  }

  grown() {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  scrollToEnd() {
    this.follows = true;
    this.toEnd.hidden = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }
}

// Whether the conversation ends with calls whose results the model wants next.
export function waitsForResults(conversation) {
  const last = conversation.messages.at(-1);
  return last?.role === 'assistant' && last.finish === 'tool_calls' && last.calls.length > 0;
}
