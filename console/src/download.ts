import { blobUrl, type Query } from "./api";
import { attempt } from "./components/Toast";

/** Saves what needs the key to be read. */
export function download(path: string, query: Query, name: string): Promise<boolean> {
  return attempt(async () => saveFrom(await blobUrl(path, query), name));
}

export const save = (text: string, type: string, name: string): void => saveFrom(URL.createObjectURL(new Blob([text], { type })), name);

function saveFrom(address: string, name: string): void {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** RFC 4180, with a mark that tells spreadsheets it is UTF-8. What one would take for a formula begins with an apostrophe. */
export function csv<T>(columns: readonly (keyof T & string)[], rows: T[]): string {
  const cell = (value: unknown): string => {
    const text = typeof value === "string" ? value.replace(/^[=+\-@\t\r]/, "'$&") : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `\ufeff${[columns, ...rows.map((row) => columns.map((name) => row[name]))].map((line) => line.map(cell).join(",")).join("\r\n")}\r\n`;
}
