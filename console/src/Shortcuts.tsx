/** What the keyboard does, on every page and in a chat. */
import { signal } from "@preact/signals";
import { Dialog } from "./components/Dialog";
import { type Text, t } from "./i18n";

const KEYS: [keys: string[], does: Text][] = [
  [["Ctrl", "K"], "palette"],
  [["Enter"], "send"],
  [["Shift", "Enter"], "new_line"],
  [["Esc"], "stop"],
  [["/"], "slash_commands"],
];

export const shortcutsOpen = signal(false);

export function Shortcuts() {
  return (
    <Dialog title={t("shortcuts")} onClose={() => (shortcutsOpen.value = false)}>
      <dl class="shortcuts">
        {KEYS.map(([keys, does]) => (
          <div key={does}><dt>{t(does)}</dt><dd dir="ltr">{keys.map((key) => <kbd key={key}>{key}</kbd>)}</dd></div>
        ))}
      </dl>
    </Dialog>
  );
}
