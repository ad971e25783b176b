import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Whether a key is an input method's. Safari ends the composition before the keydown that ended it, whose code is 229. */
export const isComposing = (event: KeyboardEvent): boolean => event.isComposing || event.keyCode === 229;

/** Whether a key sends what is written. A keyboard on a screen has no Shift-Enter: there Enter begins a line, and the button sends. */
export function isSending(event: KeyboardEvent): boolean {
  if (event.key !== "Enter" || event.shiftKey) return false;
  return event.ctrlKey || event.metaKey || !matchMedia("(hover: none) and (pointer: coarse)").matches;
}

/** Gives the focus to the first field of a form that takes the place of a button: `autofocus` does only where nothing else has it. */
export function useFirstField<T extends HTMLElement>(): RefObject<T | null> {
  const form = useRef<T>(null);
  useLayoutEffect(() => form.current?.querySelector<HTMLElement>("input, textarea, select")?.focus(), []);
  return form;
}
