//! Clocks and randomness: the run's, unless real ones are granted.

use super::{access, common};
use molt_sandbox::{Grants, Reward, Verdict};

fn load(grants: Grants) -> Reward {
    common::SANDBOX.reward(&common::library(), "hostile", access(grants)).unwrap()
}

async fn draw(reward: &Reward, act: &str) -> f64 {
    match reward.score(common::call(1), &common::sample(act, None)).await.unwrap() {
        Verdict::Scored { reward, .. } => reward,
        other => panic!("{act}: {other:?}"),
    }
}

#[tokio::test]
async fn randomness_is_the_calls_unless_real_is_granted() {
    let seeded = load(Grants::default());
    assert_eq!(draw(&seeded, "random").await, draw(&seeded, "random").await);
    let real = load(Grants { real_random: true, ..Grants::default() });
    assert_ne!(draw(&real, "random").await, draw(&real, "random").await);
}

#[tokio::test]
async fn time_is_virtual_unless_real_is_granted() {
    // Both are seconds since 1970 as the guest sees them; virtual time begins in the year 2000.
    assert_eq!(draw(&load(Grants::default()), "time").await.trunc(), 946_684_800.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let seen = draw(&load(Grants { real_clock: true, ..Grants::default() }), "time").await;
    assert!(seen >= now.trunc() && seen < now + 3600.0, "{seen}");
}
