/** Ctrl-K: whatever can be done, by typing some of its name. Pages add commands of their own while they are shown. */
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { isBeside } from "./components/Dialog";
import { Icon, type IconName } from "./components/icons";
import { t } from "./i18n";
import { isComposing } from "./typing";

export interface Command {
  label: string;
  icon: IconName;
  /** What stands at the end of the line: a key, or a kind. */
  hint?: string;
  act: () => void;
}
type Source = (typed: string) => Command[] | Promise<Command[]>;

export const paletteOpen = signal(false);
const sources = new Set<Source>();
const MOST = 60;

/** Adds commands for as long as a component is shown. */
export function useCommands(source: Source): void {
  const latest = useRef(source);
  latest.current = source;
  useEffect(() => {
    const mine: Source = (typed) => latest.current(typed);
    sources.add(mine);
    return () => void sources.delete(mine);
  }, []);
}

export const matches = (label: string, typed: string): boolean =>
  typed.toLowerCase().split(/\s+/).every((word) => label.toLowerCase().includes(word));

export function Palette() {
  return paletteOpen.value ? <OpenPalette /> : null;
}

function OpenPalette() {
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [found, setFound] = useState<Command[]>([]);
  const [at, setAt] = useState(0);
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  useEffect(() => {
    let old = false;
    setAt(0);
    const begins = ({ label }: Command): number => Number(!label.toLowerCase().startsWith(typed.trim().toLowerCase()));
    const sorted = (commands: Command[]): Command[] => commands.toSorted((one, other) => begins(one) - begins(other));
    const now: Command[] = [];
    const later: Command[] = [];
    const show = (): void => setFound([...sorted(now), ...later].slice(0, MOST));
    for (const source of sources) {
      const given = source(typed);
      if (Array.isArray(given)) now.push(...given);
      else void given.then((more) => { later.push(...more); if (!old) show(); });
    }
    show();
    return () => void (old = true);
  }, [typed]);
  useEffect(() => void document.getElementById(`palette-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);
  const close = (): void => void (paletteOpen.value = false);
  const run = (command: Command | undefined): void => {
    close();
    command?.act();
  };
  const onKey = (event: KeyboardEvent): void => {
    if (isComposing(event)) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined && found.length > 0) setAt((at + step + found.length) % found.length);
    else if (event.key === "Enter") run(found[at]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog ref={dialog} class="palette" aria-label={t("palette")} onCancel={(event) => { event.preventDefault(); close(); }}
      onMouseDown={(event) => isBeside(event, dialog.current) && close()}>
      <div class="ask">
        <Icon name="search" />
        <input value={typed} placeholder={t("palette_hint")} aria-label={t("palette")} role="combobox" aria-expanded="true" aria-controls="palette-list"
          aria-activedescendant={found[at] ? `palette-${at}` : undefined} dir="auto"
          onInput={(event) => setTyped(event.currentTarget.value)} onKeyDown={onKey} />
      </div>
      <div id="palette-list" role="listbox" aria-label={t("palette")}>
        {found.map((command, index) => (
          <div key={index} id={`palette-${index}`} role="option" aria-selected={index === at} class="choice" onMouseMove={() => setAt(index)} onClick={() => run(command)}>
            <Icon name={command.icon} /><span dir="auto">{command.label}</span><span class="hint">{command.hint}</span>
          </div>
        ))}
        {found.length === 0 && <p class="none">{t("nothing_found")}</p>}
      </div>
    </dialog>
  );
}
