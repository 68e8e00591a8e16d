//! One rollout with a scripted model and real plugins.

use crate::scripted::*;
use molt_core::chat::{Message, Role, Task};
use molt_core::ids::{GroupId, RolloutId};
use molt_core::outcome::{DropReason, Dropped, Outcome};
use molt_core::seed::{Purpose, derive};
use molt_core::settings::Limits;
use molt_core::trajectory::{Reward, Trajectory};
use molt_generator::GeneratorError;
use molt_model::Chat;
use molt_rollout::{Driver, RolloutError};
use std::sync::Arc;

const ID: RolloutId = RolloutId { group: GroupId(7), member: 2 };

/// Member 2 of group 7 alone.
async fn rollout(driver: &Driver<Scripted>, task: &Task) -> Outcome {
    driver.group(ID.group, task, ID.member..ID.member + 1).await.unwrap().outcomes.remove(0)
}

fn finished(outcome: Outcome) -> Trajectory {
    match outcome {
        Outcome::Finished(trajectory) => *trajectory,
        Outcome::Dropped(dropped) => panic!("dropped: {dropped:?}"),
    }
}

fn dropped(outcome: Outcome) -> Dropped {
    match outcome {
        Outcome::Finished(trajectory) => panic!("finished: {trajectory:?}"),
        Outcome::Dropped(dropped) => dropped,
    }
}

fn scored(value: f64, solved: bool) -> Reward {
    Reward::Scored { value, solved }
}

/// Bisects 1 to 8 for a hidden 6: 4, then 6.
fn bisect(last: &str, _: u64) -> String {
    if last == "higher" { "6".into() } else { "4".into() }
}

fn requests(driver: &Driver<Scripted>) -> Vec<molt_generator::Request> {
    driver.generator.requests.lock().unwrap().clone()
}

#[tokio::test]
async fn a_single_turn_is_scored_and_its_tokens_are_the_sampled_ones() {
    let driver = driver(single_turn(), exact_match(), |_, _| "42".into());
    let task = task("6*7?", Some("42"), &[]);
    let got = finished(rollout(&driver, &task).await);
    assert_eq!((got.reward, got.truncated), (scored(1.0, true), false));
    assert_eq!((got.completion.as_str(), &got.task, got.rollout), ("42", &task, ID));
    assert_eq!(got.messages, [Message::new(Role::User, "6*7?"), Message::new(Role::Assistant, "42")]);
    let [request] = &requests(&driver)[..] else { panic!("one turn") };
    assert_eq!(request.seed, derive(5, Purpose::Turn { rollout: ID, turn: 0 }));
    assert_eq!(request.prompt, driver.chat.prompt(&task.messages).unwrap());
    let text = driver.chat.tokenizer().decode(got.segments[0].tokens(), false);
    assert_eq!(text, "<|im_start|>user\n6*7?<|im_end|>\n<|im_start|>assistant\n42<|im_end|>");
    let positions: Vec<usize> = got.segments[0].actions().iter().map(|action| action.position).collect();
    assert_eq!(positions, (request.prompt.len()..request.prompt.len() + 3).collect::<Vec<_>>());
}

#[tokio::test]
async fn every_prompt_extends_the_one_before_by_what_was_sampled_and_a_seam() {
    let driver = driver(guess_number(), vec![], bisect);
    let task = task("guess", Some("6"), &[("high", "8")]);
    let got = finished(rollout(&driver, &task).await);
    assert_eq!(got.reward, scored(0.9, true));
    assert_eq!(got.metrics["guesses"], 2.0);
    let said: Vec<&str> = got.messages.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(said, ["guess", "4", "higher", "6"]);
    let [first, second] = &requests(&driver)[..] else { panic!("two turns") };
    assert_ne!(first.seed, second.seed);
    let tokens = got.segments[0].tokens();
    assert!(second.prompt.starts_with(&first.prompt) && tokens.starts_with(&second.prompt));
    let text = driver.chat.tokenizer().decode(tokens, false);
    let expected = "<|im_start|>user\nguess<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n\
                    <|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n6<|im_end|>";
    assert_eq!(text, expected);
    let turns: Vec<u32> = got.segments[0].actions().iter().map(|action| action.turn).collect();
    assert_eq!(turns, [0, 0, 1, 1]);
}

/// Two turns that earn a half each. What an environment says with its last reward is no turn's context, and so in no token:
/// labs-molt 0.1.6 appends it, and never trains it.
#[tokio::test]
async fn turns_earn_their_part_and_lie_where_they_were_asked_for() {
    let driver =
        driver(environment("quiz"), vec![], |last, _| if last == "a" { "a".into() } else { "bb".into() });
    let got = finished(rollout(&driver, &task("a", Some("a\nbb"), &[("more", "b")])).await);
    assert_eq!((got.turn_rewards.as_slice(), &got.reward), (&[0.5, 0.5][..], &scored(1.0, true)));
    let [first, second] = &requests(&driver)[..] else { panic!("two turns") };
    let (first, second) = (first.prompt.len(), second.prompt.len());
    let positions: Vec<usize> = got.segments[0].actions().iter().map(|action| action.position).collect();
    assert_eq!(positions, (first..first + 2).chain(second..second + 3).collect::<Vec<_>>());
    assert_eq!(got.segments[0].tokens().len(), second + 3);
}

#[tokio::test]
async fn a_tool_call_reaches_the_environment_as_one() {
    let script = |last: &str, _| match last {
        "lower" => "<tool_call>{\"name\": \"guess\", \"arguments\": {\"n\": 3}}</tool_call>".into(),
        _ => "<tool_call>\n{\"name\": \"guess\", \"arguments\": {\"n\": 5}}\n</tool_call>".into(),
    };
    let driver = driver(guess_number(), vec![], script);
    let got = finished(rollout(&driver, &task("guess", Some("3"), &[])).await);
    assert_eq!(got.reward, scored(0.9, true));
    assert_eq!(got.messages[2], Message::new(Role::Tool, "lower"));
}

#[tokio::test]
async fn rewards_of_environment_and_plugin_add_up() {
    let driver = driver(guess_number(), exact_match(), bisect);
    let got = finished(rollout(&driver, &task("guess", Some("6"), &[("high", "8")])).await);
    assert_eq!(got.reward, scored(1.9, true));
}

#[tokio::test]
async fn a_prompt_that_leaves_no_room_is_dropped_and_never_cut() {
    let mut driver = driver(single_turn(), exact_match(), |_, _| "42".into());
    let task = task("6*7?", Some("42"), &[]);
    let prompt = driver.chat.prompt(&task.messages).unwrap().len();
    driver.turn.max_context = prompt;
    let got = dropped(rollout(&driver, &task).await);
    assert_eq!((got.rollout, got.reason), (ID, DropReason::PromptTooLong));
    assert!(got.detail.contains(&format!("a prompt of {prompt} tokens")), "{}", got.detail);
    assert!(requests(&driver).is_empty());
    // One token more is room for one token.
    driver.turn.max_context = prompt + 1;
    let got = finished(rollout(&driver, &task).await);
    assert_eq!((got.completion.as_str(), got.truncated, got.reward), ("4", true, scored(0.0, false)));
    assert_eq!(got.segments[0].tokens().len(), prompt + 1);
}

#[tokio::test]
async fn a_prompt_that_only_the_environment_made_too_long_is_its_failure() {
    let driver = |act: &str, max_context| {
        let limits = Limits { output_kib: 16 << 10, memory_mib: 64, ..Limits::default() };
        let environment = limited_environment("hostile-environment", limits);
        let mut driver = driver(environment, exact_match(), |_, _| "42".into());
        driver.turn.max_context = max_context;
        (driver, task("q", Some(act), &[]))
    };
    // It says "go on" where the row says "q": one token more than there is room for, and 8 MiB.
    let (tight, row) = driver("", 4000);
    let room = tight.chat.prompt(&[Message::new(Role::User, "go on")]).unwrap().len();
    assert!(tight.chat.prompt(&row.messages).unwrap().len() < room);
    for (act, max_context, told) in [("", room, "tokens"), ("reset: big message", 4000, "so much text")] {
        let (driver, row) = driver(act, max_context);
        let got = dropped(rollout(&driver, &row).await);
        assert_eq!(got.reason, DropReason::Plugin("said-too-much".into()), "{}", got.detail);
        assert!(got.detail.contains("`hostile-environment`") && got.detail.contains(told), "{}", got.detail);
        assert!(got.reason.is_failure() && requests(&driver).is_empty());
    }
    // With room for one token there is a turn.
    let (driver, row) = driver("", room + 1);
    assert_eq!(finished(rollout(&driver, &row).await).completion, "4");
}

#[tokio::test]
async fn text_that_cannot_fit_is_neither_rendered_nor_kept() {
    // A row of which the template would refuse to render any.
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("short.jinja");
    let source = "{% for m in messages %}{% if m.content|length > 99 %}{{ raise_exception('rendered') }}{% endif %}\
                  <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(&template, source).unwrap();
    let long = "z".repeat(4000 * 128 + 1);
    let mut driver = driver(environment("quiz"), vec![], |last, _| last.into());
    driver.chat = Arc::new(Chat::load(&chatml(), Some(&template)).unwrap());
    let got = dropped(rollout(&driver, &task(&long, Some("a"), &[])).await);
    assert_eq!(got.reason, DropReason::PromptTooLong, "{}", got.detail);
    // The second question is too long: the rollout ends there, and is scored.
    let row = task("a", Some("a\nb"), &[("more", &long)]);
    let got = finished(rollout(&driver, &row).await);
    assert_eq!((got.truncated, got.turn_rewards.as_slice()), (true, &[0.5][..]));
    assert_eq!(got.messages, [Message::new(Role::User, "a"), Message::new(Role::Assistant, "a")]);
}

#[tokio::test]
async fn a_later_turn_without_room_ends_the_rollout_which_is_still_scored() {
    let mut driver = driver(guess_number(), exact_match(), bisect);
    let task = task("guess", Some("4"), &[("high", "8")]);
    driver.turn.max_context = driver.chat.prompt(&task.messages).unwrap().len() + 10;
    let other = crate::scripted::task("guess", Some("6"), &[("high", "8")]);
    let got = finished(rollout(&driver, &other).await);
    assert_eq!((got.action_tokens(), got.truncated, got.reward), (2, true, scored(0.0, false)));
    assert_eq!(got.messages.last(), Some(&Message::new(Role::User, "higher")));
    let got = finished(rollout(&driver, &task).await);
    assert_eq!((got.reward, got.truncated), (scored(2.0, true), false));
}

#[tokio::test]
async fn the_last_turn_ends_the_rollout() {
    let mut driver = driver(guess_number(), exact_match(), |_, _| "2".into());
    driver.turn.max_turns = 3;
    let task = task("guess", Some("6"), &[]);
    let got = finished(rollout(&driver, &task).await);
    assert_eq!((got.reward, got.truncated), (scored(0.0, false), true));
    assert_eq!(requests(&driver).len(), 3);
    // Without anyone to score it, it is trained with the lowest reward.
    driver.rewards = vec![];
    let got = finished(rollout(&driver, &task).await);
    assert!(matches!(got.reward, Reward::Invalid { .. }), "{:?}", got.reward);
}

#[tokio::test]
async fn what_cannot_be_scored_is_kept_and_what_failed_is_dropped_by_name() {
    let driver = |script| driver(single_turn(), hostile(), script);
    let task = task("do it", None, &[]);
    let got = finished(rollout(&driver(|_, _| "invalid".into()), &task).await);
    assert_eq!(got.reward, Reward::Invalid { reason: "cannot be scored".into() });
    let got = finished(rollout(&driver(|_, _| "four".into()), &task).await);
    assert_eq!(got.reward, scored(4.0, true));
    let cases: [(Script, &str); 6] = [
        (|_, _| "loop".into(), "cpu-limit"),
        (|_, _| "alloc".into(), "memory-limit"),
        (|_, _| "trap".into(), "trap"),
        (|_, _| "nan".into(), "not-finite"),
        (|_, _| "read /etc/passwd".into(), "denied"),
        (|_, _| "infra".into(), "infra"),
    ];
    for (script, label) in cases {
        let got = dropped(rollout(&driver(script), &task).await);
        assert_eq!(got.reason, DropReason::Plugin(label.into()), "{}", got.detail);
        assert!(got.detail.contains("hostile") && got.detail.contains("7.2"), "{}", got.detail);
    }
}

#[tokio::test]
async fn nobody_scored() {
    let driver = driver(single_turn(), vec![], |_, _| "42".into());
    let got = dropped(rollout(&driver, &task("6*7?", None, &[])).await);
    assert_eq!(got.reason, DropReason::NoReward);
}

#[tokio::test]
async fn nothing_sampled() {
    let mut driver = driver(single_turn(), exact_match(), |_, _| "42".into());
    driver.turn.sampling.max_tokens = 0;
    let got = dropped(rollout(&driver, &task("6*7?", Some("42"), &[])).await);
    assert_eq!(got.reason, DropReason::NoActionTokens);
}

#[tokio::test]
async fn messages_that_the_template_refuses_are_a_counted_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("strict.jinja");
    let source = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\
                  <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(&template, source).unwrap();
    let mut driver = driver(guess_number(), vec![], |_, _| {
        "<tool_call>{\"name\":\"g\",\"arguments\":{\"n\":5}}</tool_call>".into()
    });
    driver.chat = Arc::new(Chat::load(&chatml(), Some(&template)).unwrap());
    let got = dropped(rollout(&driver, &task("guess", Some("3"), &[])).await);
    assert_eq!(got.reason, DropReason::Unrenderable);
    assert!(got.detail.contains("no tools here"), "{}", got.detail);
}

#[tokio::test]
async fn only_a_generator_that_stopped_is_fatal() {
    let mut driver = driver(single_turn(), exact_match(), |_, _| "42".into());
    Arc::get_mut(&mut driver.generator).unwrap().stops_at = Some(1);
    let error = driver.group(GroupId(0), &task("6*7?", Some("42"), &[]), 0..4).await.unwrap_err();
    assert!(matches!(error, RolloutError::Generator(GeneratorError::Stopped(_))), "{error}");
}

#[tokio::test]
async fn a_rollout_replays_bit_for_bit() {
    let script = |_: &str, seed: u64| (seed % 9).to_string();
    let task = task("guess", None, &[("high", "9")]);
    let play = async |id: RolloutId| {
        let driver = driver(guess_number(), vec![], script);
        driver.group(id.group, &task, id.member..id.member + 1).await.unwrap().outcomes.remove(0)
    };
    assert_eq!(play(ID).await, play(ID).await);
    let mut said = Vec::new();
    for member in 0..8 {
        said.push(finished(play(RolloutId { member, ..ID }).await).messages);
    }
    assert!(said.iter().any(|messages| *messages != said[0]), "members draw from seeds of their own");
}
