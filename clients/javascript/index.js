const MOST = 100; // signals that wait
const WEEK = 6048e5; // no receipt lasts longer
const memory = {}; // where the browser keeps nothing, or is full
let disk = {};
try {
  disk = localStorage ?? disk;
} catch {}

export function feedback(url, { onRefused = (error, signal) => console.warn(error, signal) } = {}) {
  const prefix = `millrace ${url} `;
  const waiting = () => Object.keys({ ...disk, ...memory }).filter((key) => key.startsWith(prefix)).sort();
  const busy = new Set();
  let tries = 0, pause = 0, timer = 0, running;

  function lose(key, error) {
    const held = memory[key] ?? disk[key];
    delete memory[key];
    delete disk[key];
    if (error) onRefused(error, JSON.parse(held));
    return true;
  }

  // True: it waits no longer.
  async function send(key) {
    busy.add(key);
    try {
      const age = Date.now() - parseInt(key.slice(prefix.length), 36);
      if (age > WEEK) return lose(key, { code: "too_old" });
      const body = JSON.stringify({ ...JSON.parse(memory[key] ?? disk[key]), ago: age / 1e3 });
      // Plain text needs no preflight, and a short body outlives its page.
      const answer = await fetch(`${url}/v1/feedback`, {
        method: "POST", body, credentials: "omit",
        keepalive: body.length < 16e3, signal: AbortSignal.timeout(3e4),
      });
      const { status } = answer;
      pause = answer.headers.get("retry-after") * 1e3 || 0;
      if (status === 408 || status === 429 || status >= 500) return false;
      return lose(key, !answer.ok && ((await answer.json().catch(() => 0)).error ?? { code: `${status}` }));
    } catch {
      return false;
    } finally {
      busy.delete(key);
    }
  }

  async function flush() {
    clearTimeout(timer);
    timer = 0;
    if (running) return;
    running = true;
    let key, sent = true;
    while (sent && (key = waiting()[0])) sent = await send(key);
    running = false;
    tries = sent ? 0 : Math.min(tries + 1, 10);
    if (!sent) timer = setTimeout(flush, Math.max(pause, 250 * 2 ** tries) * (1 + Math.random()));
  }

  function add(item) {
    const id = Date.now().toString(36) + Math.random().toString(36).slice(1);
    waiting().slice(0, 1 - MOST).forEach((key) => lose(key, { code: "queue_full" }));
    const held = JSON.stringify({ ...item, id });
    try {
      disk[prefix + id] = held;
    } catch {
      memory[prefix + id] = held;
    }
    timer || flush();
  }

  const on = globalThis.addEventListener ?? (() => {});
  on("online", flush);
  on("pagehide", () => waiting().forEach((key) => busy.has(key) || send(key)));
  flush();
  return {
    flush,
    track(answer) {
      const signal = (name, value, more) => add({ ...more, receipt: answer?.receipt ?? answer, name, value });
      return {
        signal,
        accepted: () => signal("accepted", true),
        rejected: () => signal("accepted", false),
        edited: (text) => signal("edited", text),
        retried: () => signal("regenerated", true),
      };
    },
  };
}
