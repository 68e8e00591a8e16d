// Guess a whole number from 1 to 100 in seven guesses.

const GUESSES = 7;

/** @implements {Molt.Episode} */
class Episode {
  /** @param {Molt.Task} task */
  constructor(task) {
    this.task = task;
    this.secret = 1 + (task.seed % 100);
    this.guesses = 0;
  }

  /** @returns {Molt.Message[]} */
  reset() {
    const content = "I think of a whole number from 1 to 100. What is it?";
    return [...this.task.messages, { role: "user", content }];
  }

  /** @param {Molt.Action} action */
  step(action) {
    this.guesses++;
    const guess = firstNumber(action.text);
    if (guess === this.secret) return this.end(1, true);
    if (this.guesses === GUESSES) return this.end(0, false);
    if (guess === null) return this.answer("Say a whole number.", null);
    return this.answer(this.secret > guess ? "Higher." : "Lower.", -0.05);
  }

  /** @param {string} content @param {number | null} reward @returns {Molt.Transition} */
  answer(content, reward) {
    /** @type {Molt.Message[]} */
    const messages = [{ role: "user", content }];
    return { messages, reward, solved: null, done: false, metrics: this.metrics() };
  }

  /** @param {number} reward @param {boolean} solved @returns {Molt.Transition} */
  end(reward, solved) {
    return { messages: [], reward, solved, done: true, metrics: this.metrics() };
  }

  metrics() {
    return [{ name: "guesses", value: this.guesses }];
  }
}

/** @type {Molt.Environment} */
export const environment = { Episode };

// The first run of digits; none of more than nine.
/** @param {string} text */
function firstNumber(text) {
  const digits = /[0-9]+/.exec(text)?.[0];
  return digits === undefined || digits.length > 9 ? null : Number(digits);
}
