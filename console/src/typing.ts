import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Whether a key is an input method's. Safari ends the composition before the keydown that ended it, whose code is 229. */
export const isComposing = (event: KeyboardEvent): boolean => event.isComposing || event.keyCode === 229;

/** Gives the focus to the first field of a form that takes the place of a button: `autofocus` does only where nothing else has it. */
export function useFirstField<T extends HTMLElement>(): RefObject<T | null> {
  const form = useRef<T>(null);
  useLayoutEffect(() => form.current?.querySelector<HTMLElement>("input, textarea, select")?.focus(), []);
  return form;
}
