// AG-UI's own verifier over recorded streams: node verify.mjs FILE, where each line of FILE is JSON with `events` and
// the `test` that they come from. Prints how many streams each client took, and the first fault of each other one.
import { readFileSync } from "node:fs";
import { from, lastValueFrom, toArray } from "rxjs";

const streams = readFileSync(process.argv[2], "utf8").trim().split("\n").map(JSON.parse);
const found = {};
for (const client of ["agui-0", "agui-1"]) {
  const { verifyEvents } = await import(client);
  found[client] = { valid: 0, events: 0, faults: [] };
  for (const { test, events } of streams) {
    found[client].events += events.length;
    try {
      await lastValueFrom(from(events).pipe(verifyEvents(false), toArray()));
      found[client].valid += 1;
    } catch (error) {
      found[client].faults.push({ test, fault: error.message, events: events.map((it) => [it.type, it.name ?? it.stepName].join(" ")) });
    }
  }
}
console.log(JSON.stringify(found));
