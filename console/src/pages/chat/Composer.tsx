/** Where a message is written: Enter sends, Shift-Enter begins a line, Esc stops, `/` lists commands, files come by drop and paste. */
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Icon } from "../../components/icons";
import { explained, toast } from "../../components/Toast";
import { t } from "../../i18n";
import type { Command } from "../../palette";
import type { Draft } from "./conversation";
import { FileChip } from "./Turn";

export interface SlashCommand extends Command {
  /** What is typed after the slash. */
  name: string;
}

interface Given {
  busy: boolean;
  /** The session that files go to; made if there is none yet. Null if it could not be. */
  session: () => Promise<string | null>;
  onSend: (draft: Draft) => void;
  onStop?: () => void;
  commands: SlashCommand[];
  webSearch: boolean;
  /** What a command has put in the place of the draft. */
  inserted?: { text: string } | null;
  /** Keeps what is written while another session is looked at. */
  draftOf: string;
}

interface Upload { key: number; name: string; size: number; file: Schemas["Attachment"] | null }

const drafts = new Map<string, string>();
let uploads = 0;

export function Composer({ busy, session, onSend, onStop, commands, webSearch, draftOf, inserted = null }: Given) {
  const [text, setText] = useState(drafts.get(draftOf) ?? "");
  const [files, setFiles] = useState<Upload[]>([]);
  const [search, setSearch] = useState(false);
  const [whileBusy, setWhileBusy] = useState<Draft["whileBusy"]>("steer");
  const [over, setOver] = useState(false);
  const [at, setAt] = useState(0);
  const area = useRef<HTMLTextAreaElement>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const id = useId();
  const typed = /^\/(\S*)$/.exec(text)?.[1];
  const offered = typed === undefined ? [] : commands.filter(({ name }) => name.startsWith(typed.toLowerCase()));
  const uploading = files.some(({ file }) => file === null);

  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current?.focus();
  }, [draftOf]);
  useEffect(() => {
    if (inserted === null) return;
    setText(inserted.text);
    area.current?.focus();
  }, [inserted]);
  useEffect(() => {
    drafts.set(draftOf, text);
    setAt(0);
  }, [text, draftOf]);
  useLayoutEffect(() => {
    const box = area.current;
    if (box === null) return;
    box.style.blockSize = "auto";
    box.style.blockSize = `${Math.min(box.scrollHeight, Math.round(innerHeight * 0.4))}px`;
  }, [text]);

  const add = async (list: Iterable<File>): Promise<void> => {
    for (const file of list) {
      const key = (uploads += 1);
      setFiles((before) => [...before, { key, name: file.name, size: file.size, file: null }]);
      const drop = (): void => setFiles((before) => before.filter((each) => each.key !== key));
      const to = await session();
      if (to === null) return drop();
      const form = new FormData();
      form.append("file", file, file.name);
      try {
        const stored = await call<Schemas["Attachment"]>("POST", `/sessions/${to}/attachments`, { body: form });
        setFiles((before) => before.map((each) => (each.key === key ? { ...each, file: stored } : each)));
      } catch (error) {
        drop();
        toast(`${file.name}: ${explained(error)}`, true);
      }
    }
  };
  const send = (): void => {
    if (!text.trim()) return;
    if (uploading) return toast(t("still_sending"));
    onSend({ text, files: files.flatMap(({ file }) => file ?? []), search: search && webSearch, whileBusy });
    setText("");
    setFiles([]);
  };
  const run = (command: SlashCommand | undefined): void => {
    setText("");
    command?.act();
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (offered.length > 0 && step !== undefined) setAt((at + step + offered.length) % offered.length);
    else if (offered.length > 0 && (event.key === "Enter" || event.key === "Tab")) run(offered[at]);
    else if (event.key === "Escape" && offered.length > 0) setText("");
    else if (event.key === "Enter" && !event.shiftKey) send();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const onPaste = (event: ClipboardEvent): void => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length === 0) return;
    event.preventDefault();
    void add(pasted);
  };
  const onDrop = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    void add(event.dataTransfer?.files ?? []);
  };
  return (
    <div class="composer" data-over={over} onDragOver={(event) => { event.preventDefault(); setOver(true); }} onDragLeave={() => setOver(false)} onDrop={onDrop}>
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
              {files.map(({ key, name, size, file }) => (
                <FileChip key={key} name={name} size={size} busy={file === null} onDrop={() => setFiles((before) => before.filter((each) => each.key !== key))} />
              ))}
            </div>
          )}
          <textarea ref={area} rows={1} dir="auto" value={text} placeholder={t("say")} aria-label={t("say")} maxLength={32_000}
            aria-controls={offered.length > 0 ? id : undefined} aria-activedescendant={offered.length > 0 ? `${id}-${at}` : undefined}
            onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKey} onPaste={onPaste} />
          <div class="row">
            <input ref={chooser} type="file" multiple hidden onChange={(event) => { void add([...(event.currentTarget.files ?? [])]); event.currentTarget.value = ""; }} />
            <Button kind="quiet" icon="clip" label={t("attach")} onClick={() => chooser.current?.click()} />
            {webSearch && <Button kind="quiet" icon="globe" label={t("search_web")} aria-pressed={search} onClick={() => setSearch(!search)} />}
            {busy && (
              <select class="select" aria-label={t("while_busy")} value={whileBusy} onChange={(event) => setWhileBusy(event.currentTarget.value as Draft["whileBusy"])}>
                <option value="steer">{t("steer")}</option>
                <option value="enqueue">{t("enqueue")}</option>
              </select>
            )}
            <span class="grow" />
            {busy && onStop && <Button icon="stop" label={t("stop")} onClick={onStop} />}
            <Button kind="primary" icon="arrowUp" label={t("send")} disabled={!text.trim() || uploading} onClick={send} />
          </div>
        </div>
      </div>
    </div>
  );
}
