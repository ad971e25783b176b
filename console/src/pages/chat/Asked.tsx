/** What a tool asks of the user: a small form for its schema, or the link to follow. The words are the tool's. */
import { useState } from "preact/hooks";
import { Button } from "../../components/Button";
import { t } from "../../i18n";
import { pretty, visible } from "../../text";
import { parsed, type Plan } from "./live";

type Asks = NonNullable<Plan["steps"][number]["asks"]>;
type Value = string | number | boolean | string[];

interface Field {
  type?: string;
  title?: string;
  description?: string;
  format?: string;
  default?: Value;
  enum?: string[];
  enumNames?: string[];
  oneOf?: { const: string; title: string }[];
  items?: Field & { anyOf?: { const: string; title: string }[] };
}
const KEYBOARDS: Record<string, "email" | "url" | "numeric" | "decimal"> = { email: "email", uri: "url", integer: "numeric", number: "decimal" };

interface Given {
  asks: Asks;
  onAnswer: (answer?: Record<string, unknown>) => void;
  onDecline: () => void;
}

export function Asked({ asks, onAnswer, onDecline }: Given) {
  const fields = (asks.schema?.["properties"] ?? {}) as Record<string, Field>;
  const names = asks.fields ?? [];
  const required = (asks.schema?.["required"] ?? []) as string[];
  const [values, setValues] = useState<Record<string, Value>>(() => begun(fields, asks.given ?? {}));
  const submit = (event: Event): void => {
    event.preventDefault();
    if (asks.mode === "url") onAnswer();
    else onAnswer(Object.fromEntries(names.filter((name) => values[name] !== undefined && values[name] !== "").map((name) => [name, values[name]])));
  };
  return (
    <form class="asked" onSubmit={submit}>
      <p class="muted">{t("tool_asks", { source: visible(asks.source ?? "") })}</p>
      <blockquote dir="auto">{visible(asks.message)}</blockquote>
      {asks.mode === "url" && asks.url && (
        <p><a href={asks.url} target="_blank" rel="noopener noreferrer">{t("open_link", { host: new URL(asks.url).host })}</a></p>
      )}
      {names.map((name) => (
        <label key={name} class="argument">
          <span>{visible(fields[name]?.title ?? name)}{required.includes(name) && " *"} {asks.given?.[name] !== undefined && <span class="origin">{t("from_you")}</span>}</span>
          {fields[name]?.description && <span class="muted" dir="auto">{visible(fields[name].description)}</span>}
          <Input field={fields[name] ?? {}} required={required.includes(name)} {...(values[name] !== undefined && { value: values[name] })}
            onChange={(value) => setValues((before) => ({ ...before, [name]: value }))} />
        </label>
      ))}
      <div class="buttons">
        <Button kind="primary" icon="check" type="submit">{t(asks.mode === "url" ? "done_there" : "send")}</Button>
        <Button kind="danger" icon="cross" onClick={onDecline}>{t("reject")}</Button>
      </div>
    </form>
  );
}

function begun(fields: Record<string, Field>, given: Record<string, unknown>): Record<string, Value> {
  const defaults = Object.entries(fields).filter(([, { default: value }]) => value !== undefined).map(([name, field]) => [name, field.default]);
  const booleans = Object.entries(fields).filter(([, { type }]) => type === "boolean").map(([name]) => [name, false]);
  return { ...Object.fromEntries(booleans), ...Object.fromEntries(defaults), ...given } as Record<string, Value>;
}

interface InputProps {
  field: Field;
  required: boolean;
  value?: Value;
  onChange: (value: Value) => void;
}

function Input({ field, required, value, onChange }: InputProps) {
  const choices = choicesOf(field.items ?? field);
  if (field.type === "boolean") return <input type="checkbox" checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />;
  if (choices.length > 0) {
    const several = field.type === "array";
    const chosen = Array.isArray(value) ? value : [pretty(value ?? "")];
    return (
      <select class="field" required={required} multiple={several}
        onChange={(event) => { const picked = [...event.currentTarget.selectedOptions].map((option) => option.value); onChange(several ? picked : picked[0] ?? ""); }}>
        {!several && <option value="" />}
        {choices.map(([choice, title]) => <option key={choice} value={choice} selected={chosen.includes(choice)}>{visible(title)}</option>)}
      </select>
    );
  }
  const isNumber = field.type === "number" || field.type === "integer";
  return (
    <input class="field" dir="auto" type="text" required={required} inputMode={KEYBOARDS[field.format ?? field.type ?? ""] ?? "text"}
      placeholder={field.format === "date" ? "YYYY-MM-DD" : ""} value={value === undefined ? "" : pretty(value)}
      onInput={(event) => { const text = event.currentTarget.value; onChange(isNumber && text.trim() !== "" && !Number.isNaN(Number(text)) ? ((parsed(text) ?? Number(text)) as number) : text); }} />
  );
}

function choicesOf(field: NonNullable<Field["items"]>): [string, string][] {
  const named = (field.enum ?? []).map((value, at): [string, string] => [value, field.enumNames?.[at] ?? value]);
  return [...named, ...(field.oneOf ?? field.anyOf ?? []).map(({ const: value, title }): [string, string] => [value, title])];
}
