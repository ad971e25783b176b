import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { t } from "../i18n";
import { Button } from "./Button";
import { settle } from "./Toast";

interface Given {
  title: string;
  children: ComponentChildren;
  /** Called by Esc, by the cross and, unless something was typed, by a click beside it. Without it the dialog stays. */
  onClose?: () => void;
  wide?: boolean;
}

/** Whether a dialog was pressed outside of its box. Its own scroll bar is inside. */
export function isBeside({ target, clientX: x, clientY: y }: MouseEvent, dialog: HTMLElement | null): boolean {
  if (dialog === null || target !== dialog) return false;
  const { left, right, top, bottom } = dialog.getBoundingClientRect();
  return x < left || x > right || y < top || y > bottom;
}

/** Modal: the browser keeps the focus inside and gives it back. */
export function Dialog({ title, children, onClose, wide = false }: Given) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  /** A click beside a form does not lose what was typed in it. */
  const typed = useRef(false);
  /** The browser closes it all the same on a second Esc. */
  const closed = (): void => {
    if (!dialog.current?.isConnected || dialog.current.open) return;
    if (onClose) onClose();
    else dialog.current.showModal();
  };
  useLayoutEffect(() => {
    const shown = dialog.current;
    const before = document.activeElement;
    shown?.showModal();
    return () => {
      shown?.close();
      settle();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog ref={dialog} class={wide ? "dialog wide" : "dialog"} aria-labelledby={id} closedby={onClose ? "closerequest" : "none"}
      onClose={closed} onCancel={(event) => { event.preventDefault(); onClose?.(); }} onInput={() => (typed.current = true)}
      onMouseDown={(event) => isBeside(event, dialog.current) && !typed.current && onClose?.()}>
      <header>
        <h2 id={id}>{title}</h2>
        {onClose && <Button kind="quiet" icon="cross" label={t("close")} onClick={onClose} />}
      </header>
      <div class="body">{children}</div>
    </dialog>
  );
}

interface Question {
  title: string;
  text?: string;
  action: string;
  danger?: boolean;
  /** Asks for a line of text, and begins with this one. */
  value?: string;
  label?: string;
  /** The characters that the line may have. */
  atMost?: number;
  onDone: (value: string) => void | Promise<unknown>;
  onClose: () => void;
}

/** Asks for a yes, or for one line of text. */
export function Ask({ title, text, action, danger = false, value, label, atMost, onDone, onClose }: Question) {
  const [typed, setTyped] = useState(value ?? "");
  const submit = (event: Event): void => {
    event.preventDefault();
    onClose();
    void onDone(typed);
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit}>
        {text !== undefined && <p>{text}</p>}
        {value !== undefined && (
          <input class="field" value={typed} aria-label={label ?? title} dir="auto" autoFocus maxLength={atMost}
            onInput={(event) => setTyped(event.currentTarget.value)} />
        )}
        <footer>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button kind={danger ? "danger" : "primary"} type="submit" autoFocus={value === undefined}>{action}</Button>
        </footer>
      </form>
    </Dialog>
  );
}
