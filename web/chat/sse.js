// Server-sent events over fetch (EventSource can neither POST nor send headers).

const MAX_EVENT_CHARS = 64 * 1024 * 1024;  // an event beyond that is no answer of a model

// Reads a byte stream as events and yields {event, data}. Bytes may be cut anywhere, in the middle of a character,
// too. Lines end with LF, CR LF or CR; comments and unknown fields are skipped; an event that the stream's end cuts off is
// dropped, as the standard has it.
export async function* readEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  let data = [];
  let event = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      if (rest.length > MAX_EVENT_CHARS) throw new Error('The server sent an event without an end.');
      let start = 0;
      for (;;) {
        const end = lineEnd(rest, start, done);
        if (end === null) break;
        const line = rest.slice(start, end.at);
        start = end.next;
        if (line === '') {
          if (data.length) yield { event: event || 'message', data: data.join('\n') };
          data = [];
          event = '';
          continue;
        }
        if (line[0] === ':') continue;
        const colon = line.indexOf(':');
        const field = colon < 0 ? line : line.slice(0, colon);
        let content = colon < 0 ? '' : line.slice(colon + 1);
        if (content[0] === ' ') content = content.slice(1);
        if (field === 'data') data.push(content);
        else if (field === 'event') event = content;
      }
      rest = rest.slice(start);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});  // frees the connection when the caller leaves early
  }
}

// Where the line that begins at `start` ends, or null if its end has not arrived. A CR at the very end may be half of
// CR LF, so it waits for more.
function lineEnd(text, start, isLast) {
  const lf = text.indexOf('\n', start);
  const cr = text.indexOf('\r', start);
  if (cr >= 0 && (lf < 0 || cr < lf)) {
    if (cr + 1 < text.length) return { at: cr, next: text[cr + 1] === '\n' ? cr + 2 : cr + 1 };
    return isLast ? { at: cr, next: cr + 1 } : null;
  }
  return lf >= 0 ? { at: lf, next: lf + 1 } : null;
}
