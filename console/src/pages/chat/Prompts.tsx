/** The prompts of MCP servers as commands: what one is filled with is asked for, and what it says goes into the draft. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call, get, type Listed, type Schemas } from "../../api";
import { Button } from "../../components/Button";
import { Dialog } from "../../components/Dialog";
import { attempt } from "../../components/Toast";
import { t } from "../../i18n";
import { useLoad } from "../../load";
import { visible } from "../../text";
import type { SlashCommand } from "./Composer";

type Prompt = Schemas["McpPrompt"];

export interface Prompts {
  commands: SlashCommand[];
  /** The dialog that asks, while it does. */
  asking: JSX.Element | null;
}

export function usePrompts(onText: (text: string) => void): Prompts {
  const prompts = useLoad(() => get<Listed<Prompt>>("/mcp/prompts"), []).value?.items ?? [];
  const [asked, setAsked] = useState<Prompt | null>(null);
  const fill = async (prompt: Prompt, args: Record<string, string>): Promise<void> => {
    setAsked(null);
    await attempt(async () => {
      const body = { name: prompt.name, arguments: args };
      const { messages } = await call<Schemas["FilledPrompt"]>("POST", `/mcp/prompts/${encodeURIComponent(prompt.server)}`, { body });
      onText(messages.map(({ content }) => content).join("\n\n"));
    });
  };
  const commands = prompts.map((prompt): SlashCommand => ({
    name: visible(prompt.name).toLowerCase().replace(/\s+/g, "-"),
    label: visible(prompt.description || prompt.title),
    icon: "edit",
    hint: visible(prompt.server),
    act: () => (prompt.arguments.length === 0 ? void fill(prompt, {}) : setAsked(prompt)),
  }));
  return { commands, asking: asked && <Arguments prompt={asked} onClose={() => setAsked(null)} onDone={(args) => void fill(asked, args)} /> };
}

function Arguments({ prompt, onClose, onDone }: { prompt: Prompt; onClose: () => void; onDone: (args: Record<string, string>) => void }) {
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const typed = [...new FormData(event.currentTarget as HTMLFormElement)].map(([name, value]) => [name, String(value)] as const);
    onDone(Object.fromEntries(typed.filter(([, value]) => value !== "")));
  };
  return (
    <Dialog title={visible(prompt.title)} onClose={onClose}>
      <form onSubmit={submit}>
        {prompt.description && <p dir="auto">{visible(prompt.description)}</p>}
        {prompt.arguments.map(({ name, description, required }) => (
          <label key={name}>
            <span dir="auto">{visible(name)}{description && ` · ${visible(description)}`}</span>
            <input class="field" name={name} required={required} dir="auto" />
          </label>
        ))}
        <footer>
          <Button onClick={onClose}>{t("cancel")}</Button>
          <Button kind="primary" type="submit">{t("insert")}</Button>
        </footer>
      </form>
    </Dialog>
  );
}
