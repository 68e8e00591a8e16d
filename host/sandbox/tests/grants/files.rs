//! Directories: what is inside can be read, what is outside cannot be reached, and /scratch has a quota.

use super::{access, answer, common, load, try_answer};
use molt_sandbox::{Access, Grants, Limits, Reward};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A directory that is granted, beside a secret that is not.
struct Place {
    root: TempDir,
    data: PathBuf,
}

fn place() -> Place {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    fs::create_dir_all(data.join("sub")).unwrap();
    fs::write(data.join("a.txt"), "inside").unwrap();
    fs::write(data.join("sub/b.txt"), "below").unwrap();
    fs::write(root.path().join("secret.txt"), "secret").unwrap();
    symlink("a.txt", data.join("good")).unwrap();
    symlink("sub", data.join("good-dir")).unwrap();
    symlink("../secret.txt", data.join("up")).unwrap();
    symlink(root.path().join("secret.txt"), data.join("absolute")).unwrap();
    symlink("/etc", data.join("etc")).unwrap();
    symlink("..", data.join("parent")).unwrap();
    symlink("sub/../../secret.txt", data.join("around")).unwrap();
    symlink("loop", data.join("loop")).unwrap();
    Place { root, data }
}

fn reads(place: &Place) -> Reward {
    load("grant-files", Grants { read: vec![place.data.clone()], ..Grants::default() })
}

fn scratch_grants(mib: u64, files: u64) -> Grants {
    Grants { scratch_mib: Some(mib), scratch_files: files, ..Grants::default() }
}

fn scratch(mib: u64, files: u64) -> Reward {
    load("grant-files", scratch_grants(mib, files))
}

#[tokio::test]
async fn what_is_granted_is_read() {
    let place = place();
    let said = answer(
        &reads(&place),
        "places\nread /data/a.txt\nread /data/sub/b.txt\nread /data/good\nread /data/good-dir/b.txt\n\
         read /data/sub/../a.txt\nlist /data/sub\nsize /data/a.txt",
    )
    .await;
    assert_eq!(said, "/data|inside|below|inside|below|inside|b.txt|6");
}

#[tokio::test]
async fn nothing_leads_out_of_a_directory() {
    let place = place();
    let reward = reads(&place);
    let secret = place.root.path().join("secret.txt");
    for command in [
        "read /data/../secret.txt".to_owned(),
        "read /data/sub/../../secret.txt".into(),
        "read /data/up".into(),
        "read /data/absolute".into(),
        "read /data/around".into(),
        "read /data/parent/secret.txt".into(),
        "read /data/etc/passwd".into(),
        "read /data/loop".into(),
        "list /data/parent".into(),
        "list /data/etc".into(),
        "list /data/..".into(),
        "list /".into(),
        "read /etc/passwd".into(),
        "read /proc/self/environ".into(),
        "read etc/passwd".into(),
        format!("read {}", secret.display()),
        "raw-read /data ../secret.txt".into(),
        "raw-read /data /etc/passwd".into(),
        "raw-read /data up".into(),
        "raw-read /data up/".into(),
        "raw-read /data up/.".into(),
        "raw-read /data absolute".into(),
        "raw-read /data absolute/".into(),
        "raw-read /data parent/secret.txt".into(),
        "raw-read /data etc/".into(),
        "raw-read /data etc/passwd".into(),
        "raw-read /data sub/../../secret.txt".into(),
        "raw-read /data ./../secret.txt".into(),
        "raw-read /data //etc/passwd".into(),
        "raw-read-no-follow /data up".into(),
        "raw-read-no-follow /data up/".into(),
        "raw-read-no-follow /data parent/secret.txt".into(),
        "raw-stat /data ..".into(),
        "raw-stat /data ../secret.txt".into(),
        "raw-stat /data up".into(),
        "raw-stat /data etc".into(),
    ] {
        let said = answer(&reward, &command).await;
        let refused = [
            "NotFound",
            "PermissionDenied",
            "FilesystemLoop",
            "Uncategorized",
            "Other",
            "no-entry",
            "not-permitted",
            "access",
            "loop",
            "not-directory",
        ];
        assert!(refused.contains(&said.as_str()), "{command}: {said}");
    }
}

#[tokio::test]
async fn a_directory_that_may_be_read_is_not_changed() {
    let place = place();
    let reward = reads(&place);
    for command in [
        "write /data/a.txt 3",
        "write /data/new 3",
        "append /data/a.txt 3",
        "resize /data/a.txt 1",
        "mkdir /data/new",
        "rm /data/a.txt",
        "rmdir /data/sub",
        "rename /data/a.txt /data/c.txt",
        "link /data/a.txt /data/c.txt",
        "touch /data/a.txt",
        "raw-create /data new",
        "raw-create /data new/",
        "raw-truncate /data a.txt",
        "raw-create-below /data sub new",
        "raw-mkdir /data new/",
        "raw-rm /data a.txt",
        "raw-symlink /data a.txt new",
        "raw-link /data a.txt /data new",
        "raw-rename /data a.txt /data new",
        "raw-pwrite /data a.txt 0 3",
    ] {
        let said = answer(&reward, command).await;
        let refused =
            ["PermissionDenied", "ReadOnlyFilesystem", "not-permitted", "read-only", "invalid", "Invalid"];
        assert!(refused.iter().any(|refusal| said.starts_with(refusal)), "{command}: {said}");
    }
    assert_eq!(fs::read_to_string(place.data.join("a.txt")).unwrap(), "inside");
    assert_eq!(fs::read_dir(&place.data).unwrap().count(), 10);
    assert_eq!(fs::read_dir(place.data.join("sub")).unwrap().count(), 1);
}

#[tokio::test]
async fn pipes_and_devices_do_not_open() {
    let place = place();
    let made = Command::new("mkfifo").arg(place.data.join("pipe")).status().unwrap();
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(place.data.join("socket")).unwrap();
    symlink("pipe", place.data.join("to-pipe")).unwrap();
    // A pipe without a writer would wait forever.
    let said =
        answer(&reads(&place), "read /data/pipe\nread /data/to-pipe\nread /data/socket\nraw-read /data pipe")
            .await;
    assert_eq!(said, "PermissionDenied|PermissionDenied|PermissionDenied|not-permitted");
}

#[tokio::test]
async fn scratch_is_private_and_gone_at_the_end() {
    let reward = scratch(1, 10);
    let said =
        answer(&reward, "places\nlist /scratch\nwrite /scratch/a 3\nread /scratch/a\nlist /scratch").await;
    assert_eq!(said, "/scratch||ok|xxx|a");
    assert_eq!(answer(&reward, "list /scratch").await, "", "the next instance has its own");
}

#[tokio::test]
async fn links_are_not_made_and_nothing_is_moved_across() {
    let place = place();
    let grants = Grants {
        read: vec![place.data.clone()],
        scratch_mib: Some(1),
        scratch_files: 10,
        ..Grants::default()
    };
    let reward = load("grant-files", grants);
    for command in [
        "link /scratch/a /scratch/b",
        "link /data/a.txt /scratch/b",
        "raw-link /scratch a /scratch b",
        "raw-link /data a.txt /scratch b",
        "raw-symlink /scratch /etc/passwd b",
        "raw-symlink /scratch ../../../etc b",
        "raw-symlink /scratch a b",
        "rename /data/a.txt /scratch/b",
        "rename /scratch/a /data/b",
        "raw-rename /data a.txt /scratch b",
        "raw-rename /scratch a /data b",
        "raw-rename /scratch a /scratch ../b",
        "raw-rename /scratch ../../etc/passwd /scratch b",
        "raw-create /scratch ../b",
        "raw-create /scratch b/",
        "raw-create /scratch /b",
        "raw-mkdir /scratch ../b",
        "raw-rm /scratch ../b",
        "raw-rm /scratch a/",
    ] {
        let said =
            answer(&reward, &format!("write /scratch/a 3\n{command}\nlist /scratch\nread /scratch/a")).await;
        let parts: Vec<&str> = said.split('|').collect();
        assert!(parts[1] != "ok" && parts[2..] == ["a", "xxx"], "{command}: {said}");
    }
    assert!(!place.root.path().join("b").exists());
}

#[tokio::test]
async fn the_size_of_scratch_is_bounded_however_it_is_written() {
    let reward = scratch(1, 100);
    // The C library of a guest knows no more than that a write failed; who asks is told why.
    for (command, told) in [
        ("write /scratch/a 1048577", "i/o error"),
        ("append /scratch/a 1048577", "i/o error"),
        ("write-at /scratch/a 1048576 1", "i/o error"),
        ("write-at /scratch/a 9000000000000000000 1", "i/o error"),
        ("raw-stream /scratch a 0 1052672", "insufficient-space"),
        ("raw-stream /scratch a 1044481 4096", "insufficient-space"),
        ("raw-stream /scratch a end 1052672", "insufficient-space"),
        ("raw-stream /scratch a 18446744073709551615 4096", "insufficient-space"),
        ("raw-pwrite /scratch a 1048576 1", "insufficient-space"),
        ("raw-pwrite /scratch a 18446744073709551615 1", "file-too-large"),
    ] {
        assert_eq!(answer(&reward, command).await, told, "{command}");
    }
    let said = answer(
        &reward,
        "write /scratch/a 1048576\nappend /scratch/a 1\nwrite /scratch/b 1\nresize /scratch/a 1048577\n\
         resize /scratch/a 1048575\nwrite /scratch/b 1\nappend /scratch/b 1\nrm /scratch/a\nappend /scratch/b 1000000",
    )
    .await;
    // What is full can be made empty again.
    assert_eq!(said, "ok|i/o error|i/o error|no space|ok|ok|i/o error|ok|ok");
}

#[tokio::test]
async fn holes_and_hidden_files_count() {
    let reward = scratch(1, 100);
    let said = answer(
        &reward,
        "write /scratch/a 1\nresize /scratch/a 1048576\nwrite /scratch/b 1\nsize /scratch/a\nrename /scratch/a /scratch/b\n\
         size /scratch/b\nwrite /scratch/c 1",
    )
    .await;
    assert_eq!(said, "ok|ok|i/o error|1048576|ok|1048576|i/o error");
    // Four files of 256 KiB fill it, with or without a name.
    assert_eq!(answer(&reward, "hide /scratch/a 262144 10").await, "4");
    assert_eq!(answer(&reward, "churn /scratch/a 262144 100").await, "ok", "what is closed is free");
    assert_eq!(answer(&reward, "raw-race /scratch a 200\nwrite /scratch/b 1048576").await, "0|ok");
}

#[tokio::test]
async fn the_number_of_files_is_bounded() {
    let reward = scratch(1, 10);
    let said = answer(
        &reward,
        "create-many /scratch 50\nmkdir-many /scratch 50\nmkdir /scratch/x\nrm /scratch/3\nmkdir-many /scratch 50\n\
         write /scratch/y 1\nrename /scratch/4 /scratch/5\nwrite /scratch/y 1\nrmdir /scratch/d0\nwrite /scratch/z 1",
    ).await;
    assert_eq!(said, "10|0|no space|ok|1|no space|ok|ok|ok|ok");
}

#[tokio::test]
async fn what_is_open_is_bounded() {
    let place = place();
    let reward = reads(&place);
    let said = answer(
        &reward,
        "open-many /data/a.txt 1000\nlist-many /data 1000\nraw-streams /data a.txt 1000\nread /data/a.txt",
    )
    .await;
    assert_eq!(said, "64|8|256|inside", "and given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scratch_is_removed_after_every_end() {
    // Found by a name that no other test writes, of this process or another.
    let canary = format!("canary-{}", std::process::id());
    let scratches = || {
        let ours = |place: &fs::DirEntry| place.file_name().to_string_lossy().starts_with("molt-scratch-");
        let places = fs::read_dir(std::env::temp_dir()).unwrap().flatten().filter(ours);
        places.flat_map(|place| fs::read_dir(place.path()).into_iter().flatten().flatten())
    };
    let left = || scratches().filter(|place| place.path().join("scratch").join(&canary).exists()).count();
    let soon = Limits { call_s: 1, cpu_ms: 20_000, ..Limits::default() };
    let hasty = Access { limits: soon, ..access(scratch_grants(1, 10)) };
    let hasty = common::SANDBOX.reward(&common::library(), "grant-files", hasty).unwrap();
    let (usual, make) = (scratch(1, 10), format!("mkdir /scratch/{canary}\nlist /scratch"));
    assert_eq!(answer(&usual, &make).await, format!("ok|{canary}"));
    assert_eq!(left(), 0, "a good end");
    for (reward, end, label) in
        [(&usual, "panic", "trap"), (&usual, "spin", "cpu-limit"), (&hasty, "spin", "time-limit")]
    {
        let call = {
            let (reward, commands) = (reward.clone(), format!("{make}\n{end}"));
            tokio::spawn(async move { try_answer(&reward, &commands).await })
        };
        let mut seen = 0;
        while !call.is_finished() {
            seen = seen.max(left());
            tokio::task::yield_now().await;
        }
        // A panic may be over before anybody looks.
        assert!(seen == 1 || end == "panic", "{label}: the directory was never there");
        assert_eq!(call.await.unwrap().unwrap_err().label(), label);
        assert_eq!(left(), 0, "{label}");
    }
    let call = tokio::spawn(async move { try_answer(&hasty, &format!("{make}\nspin")).await });
    while left() == 0 {
        assert!(!call.is_finished(), "the directory was never there");
        tokio::task::yield_now().await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(left(), 0, "nobody waits any more");
}

#[tokio::test]
async fn what_a_directory_looks_like_does_not_depend_on_the_machine() {
    let names: Vec<String> = (10..40).map(|n| n.to_string()).collect();
    // Made in another order than listed in.
    let made: Vec<String> =
        names.iter().enumerate().map(|(n, _)| format!("write /scratch/{} 1", names[n * 7 % 30])).collect();
    let said = answer(&scratch(1, 100), &format!("{}\nlist-as-told /scratch", made.join("\n"))).await;
    assert_eq!(said.rsplit('|').next(), Some(names.join(",").as_str()));
    let said = answer(
        &scratch(1, 100),
        "write /scratch/a 1\nwrite /scratch/b 1\nraw-hash /scratch b\nraw-hash /scratch a\nraw-hash-open /scratch b\n\
         rename /scratch/a /scratch/c\nraw-hash /scratch c\nrm /scratch/b\nwrite /scratch/b 1\nraw-hash /scratch b\n\
         rename /scratch/c /scratch/b\nraw-hash /scratch b\nmkdir /scratch/d\nraw-hash /scratch d\nraw-hash /scratch no",
    )
    .await;
    assert_eq!(said, "ok|ok|1+0|2+0|1+0|ok|2+0|ok|ok|3+0|ok|2+0|ok|4+0|no-entry");
}

#[tokio::test]
async fn times_are_not_shown_without_a_real_clock() {
    let reward = scratch(1, 10);
    assert_eq!(answer(&reward, "write /scratch/a 1\ntimes /scratch/a").await, "ok|0");
    let grants = Grants { scratch_mib: Some(1), real_clock: true, ..Grants::default() };
    let said = answer(&load("grant-files", grants), "write /scratch/a 1\ntimes /scratch/a").await;
    let seconds: u64 = said.strip_prefix("ok|").unwrap().parse().unwrap();
    assert!(seconds > 1_600_000_000, "{said}");
}

#[tokio::test]
async fn without_a_grant_the_first_step_ends_the_call() {
    let reward = load("grant-files", Grants::default());
    let failure = try_answer(&reward, "read /data/a.txt").await.unwrap_err();
    assert_eq!(failure.label(), "denied", "{failure}");
    assert!(failure.to_string().contains("plugins.grant.grant-files.read"), "{failure}");
}
