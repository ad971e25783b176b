/** A picture that needs the key to be read: small, and as large as the window when it is pressed. */
import { useEffect, useState } from "preact/hooks";
import { blobUrl, type Query } from "../api";
import { Dialog } from "./Dialog";

/** Of these types the browser may draw. */
export const DRAWN = /^image\/(png|jpeg|gif|webp)$/;

/** The address of bytes for as long as the component is shown; null until they are there. */
export function useBlob(path: string, query: Query = {}): string | null {
  const [address, setAddress] = useState<string | null>(null);
  useEffect(() => {
    let made: string | null = null;
    let gone = false;
    void blobUrl(path, query).then((url) => {
      made = url;
      if (gone) URL.revokeObjectURL(url);
      else setAddress(url);
    }, () => {});
    return () => {
      gone = true;
      if (made !== null) URL.revokeObjectURL(made);
    };
  }, [path, JSON.stringify(query)]);
  return address;
}

interface Given {
  path: string;
  query?: Query;
  name: string;
}

export function Picture({ path, query = {}, name }: Given) {
  const address = useBlob(path, query);
  const [large, setLarge] = useState(false);
  if (address === null) return null;
  return (
    <>
      <button type="button" class="picture" title={name} onClick={() => setLarge(true)}><img src={address} alt={name} /></button>
      {large && <Dialog title={name} wide onClose={() => setLarge(false)}><img class="large" src={address} alt={name} /></Dialog>}
    </>
  );
}
