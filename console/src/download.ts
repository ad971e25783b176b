import { blobUrl, type Query } from "./api";
import { attempt } from "./components/Toast";

/** Saves what needs the key to be read. */
export function download(path: string, query: Query, name: string): Promise<boolean> {
  return attempt(async () => {
    const address = await blobUrl(path, query);
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  });
}
