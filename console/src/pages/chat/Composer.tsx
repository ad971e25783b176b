/** Where a message is written: Enter sends, Shift-Enter begins a line, Esc stops, `/` lists commands, files come by drop and paste. */
import type { Signal } from "@preact/signals";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { newKey, returns } from "../../api";
import { Button } from "../../components/Button";
import { Icon } from "../../components/icons";
import { explained } from "../../components/Toast";
import { isPassing } from "../../events";
import { t } from "../../i18n";
import { problemOf } from "../../load";
import type { Command } from "../../palette";
import { isComposing, isSending } from "../../typing";
import { type Draft, draftOf, EMPTY } from "./drafts";
import { type Attached, dropBytes, keepBytes, upload } from "./files";
import { FileChip } from "./Turn";

export interface SlashCommand extends Command {
  /** What is typed after the slash. */
  name: string;
}

interface Given {
  busy: boolean;
  /** The session that files go to as soon as they are chosen. Without one they go with the message. */
  session: string | null;
  onSend: (draft: Draft) => void;
  onStop?: () => void;
  commands: SlashCommand[];
  webSearch: boolean;
  /** What is written is kept for it. */
  chat: string;
}

export function Composer({ busy, session, onSend, onStop, commands, webSearch, chat }: Given) {
  const draft = draftOf(chat);
  const { text, files, search } = draft.value;
  const [whileBusy, setWhileBusy] = useState<Draft["whileBusy"]>("steer");
  const [at, setAt] = useState(0);
  const area = useRef<HTMLTextAreaElement>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const id = useId();
  const typed = /^\/(\S*)$/.exec(text)?.[1];
  const offered = typed === undefined ? [] : commands.filter(({ name }) => name.startsWith(typed.toLowerCase()));
  const change = (to: Partial<Draft>): void => void (draft.value = { ...draft.value, ...to });
  const setText = (now: string): void => change({ text: now });

  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current?.focus();
  }, [chat]);
  useEffect(() => setAt(0), [text, chat]);
  useEffect(() => void document.getElementById(`${id}-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);
  useLayoutEffect(() => {
    const box = area.current;
    if (box === null) return;
    box.style.blockSize = "auto";
    box.style.blockSize = `${Math.min(box.scrollHeight, Math.round(innerHeight * 0.4))}px`;
  }, [text]);
  useUploads(draft, session);

  const add = (list: Iterable<File>): void => {
    const added = [...list].map((file): Attached => {
      const key = newKey();
      keepBytes(key, file);
      return { key, name: file.name, size: file.size, stored: null, problem: null };
    });
    if (added.length > 0) change({ files: [...draft.value.files, ...added] });
  };
  const drop = (file: Attached): void => {
    void dropBytes([file]);
    change({ files: draft.value.files.filter(({ key }) => key !== file.key) });
  };
  const isOver = useDrop(add);
  const send = (): void => {
    if (!text.trim()) return;
    void dropBytes(files.filter(({ problem }) => problem !== null));
    onSend({ text, files: files.filter(({ problem }) => problem === null), search: search && webSearch, whileBusy: busy ? whileBusy : "enqueue" });
    draft.value = { ...EMPTY, search };
  };
  const run = (command: SlashCommand | undefined): void => {
    setText("");
    command?.act();
  };
  const onKey = (event: KeyboardEvent): void => {
    if (isComposing(event)) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (offered.length > 0 && step !== undefined) setAt((at + step + offered.length) % offered.length);
    else if (offered.length > 0 && (event.key === "Enter" || event.key === "Tab")) run(offered[at]);
    else if (event.key === "Escape" && offered.length > 0) setText("");
    else if (isSending(event)) send();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const onPaste = (event: ClipboardEvent): void => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    // Office programs copy text with a picture of it. A file that was copied has only its name as text.
    const isText = ["text/plain", "text/html"].every((type) => event.clipboardData?.types.includes(type));
    if (pasted.length === 0 || isText) return;
    event.preventDefault();
    add(pasted);
  };
  return (
    <div class="composer">
      {isOver && <div class="drop-here" aria-hidden="true"><Icon name="clip" size={28} />{t("drop_files")}</div>}
      <div class="column">
        {offered.length > 0 && (
          <div class="slash" role="listbox" id={id} aria-label={t("palette")}>
            {offered.map((command, index) => (
              <div key={command.name} id={`${id}-${index}`} role="option" aria-selected={index === at} class="choice" onMouseMove={() => setAt(index)} onClick={() => run(command)}>
                <Icon name={command.icon} size={16} /><code>/{command.name}</code><span>{command.label}</span>
              </div>
            ))}
          </div>
        )}
        <div class="input">
          {files.length > 0 && (
            <div class="chips">
              {files.map((file) => (
                <FileChip key={file.key} name={file.name} size={file.size} busy={session !== null && file.stored === null} problem={file.problem} onDrop={() => drop(file)} />
              ))}
            </div>
          )}
          <textarea ref={area} rows={1} dir="auto" value={text} placeholder={t("say")} aria-label={t("say")}
            aria-controls={offered.length > 0 ? id : undefined} aria-activedescendant={offered.length > 0 ? `${id}-${at}` : undefined}
            onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKey} onPaste={onPaste} />
          <div class="row">
            <input ref={chooser} type="file" multiple hidden onChange={(event) => { add([...(event.currentTarget.files ?? [])]); event.currentTarget.value = ""; }} />
            <Button kind="quiet" icon="clip" label={t("attach")} onClick={() => chooser.current?.click()} />
            {webSearch && <Button kind="quiet" icon="globe" label={t("search_web")} aria-pressed={search} onClick={() => change({ search: !search })} />}
            {busy && (
              <select class="select" aria-label={t("while_busy")} value={whileBusy} onChange={(event) => setWhileBusy(event.currentTarget.value as Draft["whileBusy"])}>
                <option value="steer">{t("steer")}</option>
                <option value="enqueue">{t("enqueue")}</option>
              </select>
            )}
            <span class="grow" />
            {busy && onStop && <Button icon="stop" label={t("stop")} onClick={onStop} />}
            <Button kind="primary" icon="arrowUp" label={t("send")} disabled={!text.trim()} onClick={send} />
          </div>
        </div>
      </div>
    </div>
  );
}

/** Sends files to the session while the message is written, again when the service is back. */
function useUploads(draft: Signal<Draft>, session: string | null): void {
  const waiting = draft.value.files.filter(({ stored, problem }) => stored === null && problem === null);
  useEffect(() => {
    if (session === null) return;
    for (const file of waiting) {
      const change = (to: Partial<Attached>): void => {
        draft.value = { ...draft.value, files: draft.value.files.map((each) => (each.key === file.key ? { ...each, ...to } : each)) };
      };
      upload(file, session).then((stored) => change({ stored }), (error: unknown) => isPassing(problemOf(error)) || change({ problem: explained(error) }));
    }
  }, [draft, session, waiting.map(({ key }) => key).join(), returns.value]);
}

/** Takes files that are dropped anywhere on the page. Returns whether some are held over it. */
function useDrop(add: (files: Iterable<File>) => void): boolean {
  const [over, setOver] = useState(false);
  const latest = useRef(add);
  latest.current = add;
  useEffect(() => {
    const stop = new AbortController();
    const on = (type: "dragover" | "dragleave" | "drop", act: (event: DragEvent) => void): void =>
      addEventListener(type, (event) => event.dataTransfer?.types.includes("Files") && act(event), { signal: stop.signal });
    on("dragover", () => setOver(true));
    on("dragleave", (event) => event.relatedTarget === null && setOver(false));
    on("drop", (event) => {
      setOver(false);
      latest.current(event.dataTransfer?.files ?? []);
    });
    return () => stop.abort();
  }, []);
  return over;
}
