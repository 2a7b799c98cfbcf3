// As cases.py: what the programs for Node share. See there for the environment and the output.
export const URL = process.env.MILLRACE_URL;
export const MODEL = process.env.MILLRACE_MODEL;
export const KEY = process.env.MILLRACE_KEY;
export const SPENT_KEY = process.env.MILLRACE_SPENT_KEY;
export const REQUESTS_PER_MINUTE = Number(process.env.MILLRACE_REQUESTS_PER_MINUTE);
export const PIXEL =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const WEATHER = {
  type: "function",
  function: { name: "get_weather", description: "The weather in a city.", parameters: PARAMETERS },
};
export const EITHER_CITY = {
  type: "function",
  function: { name: "get_weather", parameters: { ...PARAMETERS, properties: { city: { type: "string", enum: ["Paris", "Rome"] } } } },
};
export const BOOKING_SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, party: { type: "integer" } },
  required: ["name", "party"],
  additionalProperties: false,
};

// Each makes the policy repeat one token, so that a bias shows in any client.
export const BIASES = [{ 40: 100 }, { 41: 100 }];

const cases = [];
export const test = (feature, run) => cases.push([feature, run]);

export function same(seen, wanted) {
  const [left, right] = [JSON.stringify(seen), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`saw ${left}, wanted ${right}`);
}

export function truth(condition, what) {
  if (!condition) throw new Error(what);
}

export function isBiased(first, second) {
  same([first.length, second.length], [3, 3]);
  same([new Set(first).size, new Set(second).size, new Set(first + second).size], [1, 1, 2]);
}

// Send until a request is refused; many at a time, since one after another may be slower than the limit.
export async function reachTheLimit(send, isRefusal) {
  for (let turn = 0; turn < REQUESTS_PER_MINUTE; turn++) {
    const sent = await Promise.allSettled(Array.from({ length: 16 }, send));
    const failed = sent.filter((one) => one.status === "rejected").map((one) => one.reason);
    if (failed.length) {
      if (!isRefusal(failed[0])) throw failed[0];
      return;
    }
  }
  throw new Error("the limit is never reached");
}

export const user = (content) => [{ role: "user", content }];

// refusalOf: what a client's own error says of a refusal {status, code, param, message}, or null.
export async function runAll(refusalOf) {
  const wanted = process.argv.slice(2);
  for (const [feature, run] of cases) {
    if (wanted.length && !wanted.includes(feature)) continue;
    let [result, message] = ["works", ""];
    try {
      await run();
    } catch (error) {
      const refused = refusalOf(error);
      if (refused) {
        result = `refused: ${refused.status} ${refused.code ?? ""} ${refused.param ?? ""}`.trimEnd();
        message = refused.message;
      } else {
        result = `failed: ${error?.name}: ${error?.message}`.slice(0, 600);
        message = String(error?.stack);
      }
    }
    console.log(JSON.stringify({ feature, result, message }));
  }
}
