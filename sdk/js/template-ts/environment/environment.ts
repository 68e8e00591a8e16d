// Guess a whole number from 1 to 100 in seven guesses.

const GUESSES = 7;

class Episode implements Molt.Episode {
  private readonly task: Molt.Task;
  private readonly secret: number;
  private guesses = 0;

  constructor(task: Molt.Task) {
    this.task = task;
    this.secret = 1 + (task.seed % 100);
  }

  reset(): Molt.Message[] {
    const content = "I think of a whole number from 1 to 100. What is it?";
    return [...this.task.messages, { role: "user", content }];
  }

  step(action: Molt.Action): Molt.Transition {
    this.guesses++;
    const guess = firstNumber(action.text);
    if (guess === this.secret) return this.end(1, true);
    if (this.guesses === GUESSES) return this.end(0, false);
    if (guess === null) return this.answer("Say a whole number.", null);
    return this.answer(this.secret > guess ? "Higher." : "Lower.", -0.05);
  }

  private answer(content: string, reward: number | null): Molt.Transition {
    const messages: Molt.Message[] = [{ role: "user", content }];
    return { messages, reward, solved: null, done: false, metrics: this.metrics() };
  }

  private end(reward: number, solved: boolean): Molt.Transition {
    return { messages: [], reward, solved, done: true, metrics: this.metrics() };
  }

  private metrics(): Molt.Metric[] {
    return [{ name: "guesses", value: this.guesses }];
  }
}

export const environment: Molt.Environment = { Episode };

// The first run of digits; none of more than nine.
function firstNumber(text: string): number | null {
  const digits = /[0-9]+/.exec(text)?.[0];
  return digits === undefined || digits.length > 9 ? null : Number(digits);
}
