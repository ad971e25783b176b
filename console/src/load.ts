/** What a page reads from the service: read again when what it depends on changes, or the service comes back. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Problem, returns } from "./api";

export interface Loaded<T> {
  value: T | null;
  problem: Problem | null;
  reload: () => void;
}

export function useLoad<T>(read: (signal: AbortSignal) => Promise<T>, on: unknown[], everyMs?: number): Loaded<T> {
  const [state, setState] = useState<{ value: T | null; problem: Problem | null }>({ value: null, problem: null });
  const [asked, setAsked] = useState(0);
  const latest = useRef(read);
  latest.current = read;
  const isReading = useRef(false);
  const reload = useCallback(() => setAsked((count) => count + 1), []);
  useEffect(() => {
    const stop = new AbortController();
    const show = (next: (before: typeof state) => typeof state): void => {
      if (stop.signal.aborted) return;
      isReading.current = false;
      setState(next);
    };
    isReading.current = true;
    latest.current(stop.signal).then(
      (value) => show(() => ({ value, problem: null })),
      (problem: unknown) => show((before) => ({ ...before, problem: problemOf(problem) })),
    );
    return () => stop.abort();
  }, [...on, asked, returns.value]);
  useEffect(() => {
    if (everyMs === undefined) return undefined;
    const timer = setInterval(() => document.hidden || isReading.current || reload(), everyMs); // a reading that is slow is let end
    return () => clearInterval(timer);
  }, [everyMs, reload]);
  return { ...state, reload };
}

export const problemOf = (error: unknown): Problem =>
  error instanceof Problem ? error : new Problem("unexpected", 0, "", String(error));
