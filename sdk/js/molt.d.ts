// The contract, molt:plugin 0.2.0, as a plugin in JavaScript sees it; molt/wit says the same with more words.

declare namespace Molt {
  type Role = "system" | "user" | "assistant" | "tool";

  /** One chat message. The host renders it with the model's chat template. */
  interface Message {
    role: Role;
    content: string;
  }

  /** A named, finite number of one rollout, averaged over rollouts in the run's metrics. */
  interface Metric {
    name: string;
    value: number;
  }

  /** A column of the dataset row: the text of a string column, or the JSON text of any other. */
  interface Field {
    name: string;
    value: string;
  }

  /** One row of the dataset, as given to one rollout. */
  interface Task {
    id: string;
    messages: Message[];
    label: string | null;
    fields: Field[];
    /** Derived from the run's seed and the rollout; a whole number below 2^53. */
    seed: number;
  }

  /** A tool call that the host parsed from the model's own format. */
  interface ToolCall {
    name: string;
    argumentsJson: string;
  }

  /** Thrown as a plain object by an episode: the rollout is dropped and counted, never trained on. */
  interface Failure {
    message: string;
  }

  /** A finished rollout. */
  interface Sample {
    task: Task;
    /** The prompt, the model's turns and the environment's. */
    messages: Message[];
    /** The model's last turn. */
    completion: string;
    /** The last turn ended because it ran out of tokens. */
    truncated: boolean;
  }

  interface Grade {
    reward: number;
    /** Whether the task counts as solved; null: when `reward` is at least 1. */
    solved: boolean | null;
    metrics: Metric[];
  }

  /** `invalid`: the model's fault, the lowest reward. `infra`: the grader's fault, never trained on. */
  type Verdict =
    | { tag: "scored"; val: Grade }
    | { tag: "invalid"; val: string }
    | { tag: "infra"; val: string };

  /** What a plugin of kind `reward` or `judge` exports as `reward`. */
  interface Reward {
    score(sample: Sample): Verdict;
  }

  /** What a plugin of kind `group-reward` exports as `groupReward`: one verdict per sample, in their order. */
  interface GroupReward {
    scoreGroup(samples: Sample[]): Verdict[];
  }

  /** One turn of the model. */
  interface Action {
    text: string;
    toolCalls: ToolCall[];
    /** The turn ended because it ran out of tokens. */
    truncated: boolean;
  }

  /** What the environment answers. */
  interface Transition {
    /** For the model's next turn; ignored when `done`. */
    messages: Message[];
    /** The reward of this step; the rollout's is the sum. */
    reward: number | null;
    /** Whether the task counts as solved; the last answer in an episode holds. */
    solved: boolean | null;
    done: boolean;
    metrics: Metric[];
  }

  interface Episode {
    /** The messages of the first prompt. Called once, before any `step`. */
    reset(): Message[];
    step(action: Action): Transition;
  }

  /** What a plugin of kind `environment` or `code-environment` exports as `environment`. */
  interface Environment {
    Episode: new (task: Task) => Episode;
  }

  /** Flat arrays over action tokens only, segment after segment. */
  interface Batch {
    /** One per rollout. */
    rewards: number[];
    /** The prompt group of each rollout: 0, 1, … without gaps. */
    groups: number[];
    /** The rollout of each segment. */
    segmentRollouts: number[];
    /** Where each segment's action tokens begin, and last the number of all action tokens. */
    segmentOffsets: number[];
    /** The turn of each action token, counted from 0 within its rollout. */
    turns: number[];
    /** What each turn earned, rollout after rollout; of a scored one they sum to its reward, else to that or less. */
    turnRewards: number[];
    /** Where each rollout's `turnRewards` begin, and last the number of all of them. */
    turnOffsets: number[];
    /** log π − log π_ref of each action token; empty without a reference model. */
    kl: number[];
    /** The critic's value at each action token; empty without a critic. */
    values: number[];
    /** What a KL penalty in the reward is multiplied by; it may change from batch to batch. */
    klCoef: number;
    /** The values of the declared parameters, in their order: a switch as 0 or 1, a choice as the place of its word. */
    parameters: number[];
  }

  /** Something that a run may set. Bounds are inclusive; an infinite one is none. */
  interface Parameter {
    /** Lower-case letters, digits and `_`. */
    name: string;
    /** What it does, in one line. */
    doc: string;
    kind:
      | { tag: "float"; val: { default: number; min: number; max: number } }
      | { tag: "integer"; val: { default: number; min: number; max: number } }
      | { tag: "boolean"; val: boolean }
      | { tag: "choice"; val: string[] };
  }

  type Credit = { tag: "per-rollout"; val: number[] } | { tag: "per-token"; val: number[] };

  interface Estimates {
    advantages: Credit;
    returns: Credit;
  }

  interface Traits {
    /** It compares the rollouts of one prompt, so it needs at least two of them. */
    needsGroup: boolean;
    needsValues: boolean;
    /** It puts the KL penalty into the reward, or learns from it alone. */
    usesKl: boolean;
    /** The host whitens the advantages over all action tokens of the batch. */
    whiten: boolean;
    /** What a run may set. */
    parameters: Parameter[];
  }

  /** What a plugin of kind `estimator` exports as `estimator`. Throwing a string stops the run with it. */
  interface Estimator {
    describe(): Traits;
    estimate(batch: Batch): Estimates;
  }
}

/** A model to ask, for plugins of kind `judge`. */
declare module "molt:plugin/model@0.2.0" {
  interface Sampling {
    temperature: number | null;
    topP: number | null;
    maxTokens: number | null;
    stop: string[];
  }

  interface Reply {
    text: string;
    toolCalls: Molt.ToolCall[];
    finish: "stop" | "length" | "tool-calls";
    promptTokens: number;
    completionTokens: number;
  }

  /** Thrown by `chat`. */
  type ModelError =
    | { tag: "context-length"; val: number }
    | { tag: "quota" }
    | { tag: "unavailable"; val: string };

  const model: { chat(messages: Molt.Message[], sampling: Sampling): Reply };
  export default model;
}

/** Code to run, for plugins of kind `code-environment` and `code-reward`. */
declare module "molt:plugin/code@0.2.0" {
  interface Output {
    printed: string;
    value: string | null;
    error: string | null;
  }

  /** Thrown by `run`: the state of the session is lost. */
  type Stopped = { tag: "time" | "memory" | "output"; val: number } | { tag: "crashed"; val: string };

  class Session {
    run(code: string): Output;
  }

  const code: { Session: typeof Session };
  export default code;
}

/** Printed to the run's log. */
declare const console: Record<"debug" | "error" | "info" | "log" | "warn", (...values: unknown[]) => void>;
