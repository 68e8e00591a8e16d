// Closeness: the more of the label an answer begins with, the better.

/** @type {Molt.Reward} */
export const reward = {
  score(sample) {
    if (sample.task.label == null) {
      return { tag: "infra", val: "the row has no label" };
    }
    const answer = trim(sample.completion);
    const label = trim(sample.task.label);
    if (answer === "") {
      return { tag: "invalid", val: "the answer is empty" };
    }
    // The characters of a string are its code points; `length` counts UTF-16 units.
    const [a, b] = [[...answer], [...label]];
    const solved = answer === label;
    const reward = solved ? 1 : (0.5 * commonPrefix(a, b)) / Math.max(a.length, b.length);
    return { tag: "scored", val: { reward, solved, metrics: [{ name: "length", value: a.length }] } };
  },
};

// `trim()` would strip Unicode's white space too, and /[ \t…]+$/ takes quadratic time on blanks in the middle.
const WHITE_SPACE = " \t\n\r\v\f";

/** @param {string} text */
function trim(text) {
  let [start, end] = [0, text.length];
  while (start < end && WHITE_SPACE.includes(text[start])) start++;
  while (start < end && WHITE_SPACE.includes(text[end - 1])) end--;
  return text.slice(start, end);
}

/** @param {string[]} a @param {string[]} b */
function commonPrefix(a, b) {
  let count = 0;
  while (count < a.length && count < b.length && a[count] === b[count]) count++;
  return count;
}
