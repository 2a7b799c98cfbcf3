import { useMemo, useState } from "react";
import { feedback } from "millrace-feedback";

const millrace = feedback("https://millrace.example");

export function Answer({ answer, onRetry }) {
  const tracked = useMemo(() => millrace.track(answer), [answer]);
  const [text, setText] = useState(answer.text);
  const save = () => (text === answer.text ? tracked.accepted() : tracked.edited(text));
  const retry = () => (tracked.retried(), onRetry());
  return (
    <form>
      <textarea value={text} onChange={(event) => setText(event.target.value)} />
      <button type="button" onClick={save}>Use it</button>
      <button type="button" onClick={retry}>Another one</button>
      <button type="button" onClick={tracked.rejected}>Not this</button>
    </form>
  );
}
