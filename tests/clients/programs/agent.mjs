// As agent.py: what the agents for Node share. See there for the environment and the output.
export const { MILLRACE_URL: URL, MILLRACE_MODEL: MODEL, MILLRACE_KEY: KEY, MILLRACE_API: API } = process.env;
export const QUESTIONS = JSON.parse(process.env.MILLRACE_QUESTIONS);
export const SYSTEM = "You help guests.";
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const degrees = { Paris: 21, Rome: 24, Oslo: 9, Bern: 14, Graz: 17, Nice: 23 };
export const weatherIn = ({ city }) => JSON.stringify({ city, degrees: degrees[city] });
export const tell = (answers) => console.log(JSON.stringify({ answers }));
