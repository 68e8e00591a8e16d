//! Rollouts as Markdown, for people.

use molt_core::chat::{Message, Role};
use molt_core::outcome::{Group, Outcome};
use molt_core::trajectory::{Reward, Trajectory};
use std::fmt::Write;

/// One group: its row, the prompt once, and what became of each rollout.
pub fn group(group: &Group) -> String {
    let mut text = format!("## Group {}, row {}\n\n", group.id.0, one_line(&group.task.id));
    if let Some(label) = &group.task.label {
        let _ = writeln!(text, "label: {}\n", one_line(label));
    }
    let prompt = group.finished().next().map_or(&group.task.messages[..], |first| prompt(&first.messages));
    conversation(&mut text, prompt);
    for outcome in &group.outcomes {
        match outcome {
            Outcome::Finished(trajectory) => rollout(&mut text, trajectory, prompt),
            Outcome::Dropped(dropped) => {
                let _ =
                    writeln!(text, "### Rollout {}: dropped, {}\n", dropped.rollout, dropped.reason.label());
                quote(&mut text, &dropped.detail);
            }
        }
    }
    text
}

/// One rollout; messages that equal those of `shown` are not shown again.
fn rollout(text: &mut String, trajectory: &Trajectory, shown: &[Message]) {
    let reward = match &trajectory.reward {
        Reward::Scored { value, solved } => {
            format!("reward {value}, {}", if *solved { "solved" } else { "not solved" })
        }
        Reward::Invalid { reason } => format!("could not be scored: {}", one_line(reason)),
    };
    let truncated = if trajectory.truncated { ", truncated" } else { "" };
    let _ = writeln!(text, "### Rollout {}: {reward}{truncated}\n", trajectory.rollout);
    let (tokens, mean) = logprob(trajectory);
    let _ = write!(text, "{tokens} action tokens, mean log-probability {mean:.4}");
    for (name, value) in &trajectory.metrics {
        let _ = write!(text, ", {} {value}", one_line(name));
    }
    text.push_str("\n\n");
    conversation(text, trajectory.messages.strip_prefix(shown).unwrap_or(&trajectory.messages));
}

/// The messages before the model's first turn.
fn prompt(messages: &[Message]) -> &[Message] {
    let turn = messages.iter().position(|message| message.role == Role::Assistant);
    &messages[..turn.unwrap_or(messages.len())]
}

/// Number of action tokens and the mean of their log-probabilities.
fn logprob(trajectory: &Trajectory) -> (usize, f64) {
    let actions = trajectory.segments.iter().flat_map(|segment| segment.actions());
    let sum: f64 = actions.map(|action| f64::from(action.logprob)).sum();
    let tokens = trajectory.action_tokens();
    (tokens, sum / tokens.max(1) as f64)
}

fn conversation(text: &mut String, messages: &[Message]) {
    for message in messages {
        let role = match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let _ = writeln!(text, "**{role}**\n");
        quote(text, &message.content);
    }
}

/// Foreign text as an indented block, which Markdown shows as it is, whatever it contains.
fn quote(text: &mut String, content: &str) {
    for line in content.split('\n') {
        let _ = writeln!(text, "    {}", visible(line));
    }
    text.push('\n');
}

/// Foreign text within a line of ours.
fn one_line(content: &str) -> String {
    visible(content).replace('\n', "⏎")
}

/// Control characters are escaped, so that text which a model wrote cannot steer a terminal.
fn visible(content: &str) -> String {
    let escape = |c: char| c.is_control() && c != '\n' && c != '\t';
    content.chars().map(|c| if escape(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use molt_core::chat::Task;
    use molt_core::ids::{GroupId, RolloutId, WeightVersion};
    use molt_core::outcome::{DropReason, Dropped};
    use molt_core::trajectory::{Sampled, Segment};

    fn finished(member: u32, reward: Reward, completion: &str) -> Outcome {
        let mut segment = Segment::new(vec![1]);
        let version = WeightVersion(0);
        segment.push_turn(
            0,
            &[Sampled { token: 2, logprob: -0.5, version }, Sampled { token: 3, logprob: -1.0, version }],
        );
        let messages = vec![Message::new(Role::User, "2+2?"), Message::new(Role::Assistant, completion)];
        Outcome::Finished(Box::new(Trajectory {
            rollout: RolloutId { group: GroupId(3), member },
            task: task(),
            segments: vec![segment],
            messages,
            completion: completion.into(),
            truncated: member == 1,
            reward,
            turn_rewards: vec![1.0],
            metrics: [("steps".to_string(), 2.0)].into(),
        }))
    }

    fn task() -> Task {
        let messages = vec![Message::new(Role::User, "2+2?")];
        Task { id: "7".into(), messages, label: Some("4".into()), fields: vec![] }
    }

    #[test]
    fn a_group_as_people_read_it() {
        let lost = Dropped {
            rollout: RolloutId { group: GroupId(3), member: 2 },
            reason: DropReason::Plugin("trap".into()),
            detail: "math trapped".into(),
        };
        let outcomes = vec![
            finished(0, Reward::Scored { value: 1.0, solved: true }, "# 4\nsure"),
            finished(1, Reward::Invalid { reason: "no\nnumber".into() }, "\u{1b}[31mfour"),
            Outcome::Dropped(lost),
        ];
        let text = group(&Group { id: GroupId(3), task: task(), outcomes });
        let expected = "\
## Group 3, row 7

label: 4

**user**

    2+2?

### Rollout 3.0: reward 1, solved

2 action tokens, mean log-probability -0.7500, steps 2

**assistant**

    # 4
    sure

### Rollout 3.1: could not be scored: no⏎number, truncated

2 action tokens, mean log-probability -0.7500, steps 2

**assistant**

    \\u{1b}[31mfour

### Rollout 3.2: dropped, trap

    math trapped

";
        assert_eq!(text, expected);
    }
}
