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

const cases = [];
export const test = (feature, run) => cases.push([feature, run]);

export function same(seen, wanted) {
  const [left, right] = [JSON.stringify(seen), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`saw ${left}, wanted ${right}`);
}

export function truth(condition, what) {
  if (!condition) throw new Error(what);
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
