/** What the server said of a signal that it refused, or `too_old` (a week without a connection), or `queue_full` (100 wait). */
export interface Refusal {
  code: string;
  message?: string;
  param?: string | null;
}

/** What may be said beside a value. It is kept and shown, and no part of a reward. */
export interface Details {
  comment?: string;
  metadata?: Record<string, string>;
}

export type Value = boolean | number | string;

export interface Signal extends Details {
  receipt: string;
  id: string;
  name: string;
  value: Value;
}

export interface Tracked {
  /** The user took the answer: `accepted`, true. */
  accepted(): void;
  /** The user refused it: `accepted`, false. */
  rejected(): void;
  /** The user wrote this instead: `edited`. */
  edited(text: string): void;
  /** The user asked for another answer: `regenerated`, true. */
  retried(): void;
  /** Any other signal that the task declares. */
  signal(name: string, value: Value, details?: Details): void;
}

export interface Feedback {
  /** The answer that a page shows: its receipt, or an object that has it. */
  track(answer: string | { receipt: string }): Tracked;
  /** Send what waits, now. Resolves when nothing waits, or at the first failure; the rest is tried again later. */
  flush(): Promise<void>;
}

export interface Options {
  /** Called for each signal that is lost. By default it is a warning on the console. */
  onRefused?: (error: Refusal, signal: Signal) => void;
}

/** `url`: of Millrace, without a path. Make one for a page. */
export function feedback(url: string, options?: Options): Feedback;
