//! Reboots, and inhibitor locks against them.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_reboot_is_accepted_when_logind_announces_it() {
    for script in [Reboot::Announced, Reboot::ReplyLost, Reboot::BusRestarts] {
        let (machine, systemd) = machine();
        machine.on_reboot(script);
        let receipt = systemd
            .reboot_by(RebootMethod::Logind, RebootFlags::NONE, LIMIT)
            .await;
        assert_eq!(receipt.unwrap(), RebootProof::Accepted, "{script:?}");
        assert_eq!(machine.requests(), ["RebootWithFlags 0"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_logind_without_reboot_flags_gets_the_older_call() {
    let (machine, systemd) = machine();
    machine.without_reboot_flags();
    let receipt = systemd
        .login()
        .reboot_with_proof(RebootFlags::KEXEC, LIMIT)
        .await;
    assert_eq!(receipt.unwrap(), RebootProof::Accepted);
    assert_eq!(machine.requests(), ["Reboot false"]);
}

#[tokio::test(start_paused = true)]
async fn a_reboot_that_does_not_happen_is_reported() {
    const IN_PROGRESS: &str = "org.freedesktop.login1.OperationInProgress";
    const DENIED: &str = "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired";
    let cases = [
        (Reboot::Silent, Err(Reason::RebootTimeout)),
        (Reboot::Cancelled, Err(Reason::RebootCancelled)),
        (
            Reboot::Refused(IN_PROGRESS, ""),
            Ok(RebootProof::InProgress),
        ),
        (Reboot::Refused(DENIED, ""), Err(Reason::PermissionMissing)),
    ];
    for (script, outcome) in cases {
        let (machine, systemd) = machine();
        machine.on_reboot(script);
        let began = Instant::now();
        let receipt = systemd
            .login()
            .reboot_with_proof(RebootFlags::NONE, LIMIT)
            .await;
        assert_eq!(
            receipt.map_err(|error| error.reason()),
            outcome,
            "{script:?}"
        );
        let waited = if script == Reboot::Silent { 60 } else { 0 };
        assert_eq!(began.elapsed().as_secs(), waited, "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_block_inhibitor_stops_every_reboot_method_and_is_named() {
    let (machine, systemd) = machine();
    machine.add_inhibitor("sleep", "player", "music", "block");
    machine.add_inhibitor("shutdown", "kubelet", "pods end", "delay");
    machine.add_inhibitor("shutdown", "machinist", "writing", "block");
    machine.add_inhibitor("shutdown:sleep", "backup", "tape is running", "block");
    for method in RebootMethod::ALL {
        let refused = systemd.reboot_by(method, RebootFlags::NONE, LIMIT).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason(), Reason::RebootInhibited);
        let trouble = refused.trouble().to_string();
        assert_eq!(trouble, "blocked by inhibitor backup (tape is running)");
    }
    assert_eq!(machine.requests(), [] as [&str; 0], "nothing was asked for");
}

/// logind refuses a reboot until it has noticed that our lock of the commit is closed.
#[tokio::test(start_paused = true)]
async fn a_reboot_waits_until_logind_has_released_our_own_lock() {
    const BLOCKED: &str = "org.freedesktop.login1.BlockedByInhibitorLock";
    let (machine, systemd) = machine();
    machine.on_reboot(Reboot::Refused(BLOCKED, ""));
    machine.add_inhibitor("shutdown", "machinist", "applying it", "block");
    let login = systemd.login();
    let released = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        machine.on_reboot(Reboot::Announced);
    };
    let (receipt, ()) = tokio::join!(login.reboot_with_proof(RebootFlags::NONE, LIMIT), released);
    assert_eq!(receipt.unwrap(), RebootProof::Accepted);

    let (machine, systemd) = self::machine();
    machine.on_reboot(Reboot::Refused(BLOCKED, ""));
    let login = systemd.login();
    let began = Instant::now();
    let refused = login.reboot_with_proof(RebootFlags::NONE, LIMIT).await;
    assert_eq!(refused.unwrap_err().reason(), Reason::RebootInhibited);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(5), "{waited:?}");
    assert!(waited < Duration::from_secs(6), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn fallback_reboot_methods_confirm_that_the_machine_shuts_down() {
    let (machine, systemd) = machine();
    let reboot = Systemd::reboot_by;
    let silent = reboot(
        &systemd,
        RebootMethod::TransientUnit,
        RebootFlags::NONE,
        LIMIT,
    )
    .await;
    assert_eq!(silent.unwrap_err().reason(), Reason::RebootTimeout);
    machine.set_unit(
        "reboot.target",
        Unit {
            job: 9,
            ..Unit::stopped()
        },
    );
    for (method, asked) in [
        (
            RebootMethod::TransientUnit,
            "StartTransientUnit machinist-reboot.service fail",
        ),
        (
            RebootMethod::RebootTarget,
            "StartUnit reboot.target replace-irreversibly",
        ),
    ] {
        let receipt = reboot(&systemd, method, RebootFlags::NONE, LIMIT).await;
        assert_eq!(receipt.unwrap(), RebootProof::Accepted);
        assert!(machine.requests().iter().any(|it| it == asked), "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_soft_reboot_is_never_replaced_by_a_full_one_on_older_logind() {
    let (machine, systemd) = machine();
    let soft = |method| Services::reboot(&systemd, RebootKind::Soft, method, "because");
    soft(RebootMethod::Logind).await.unwrap();
    assert!(machine.requests().contains(&"RebootWithFlags 4".to_owned()));
    machine.cancel_without_signal();
    machine.set_unit(
        "soft-reboot.target",
        Unit {
            job: 9,
            ..Unit::stopped()
        },
    );
    soft(RebootMethod::TransientUnit).await.unwrap();
    soft(RebootMethod::RebootTarget).await.unwrap();
    let received = machine.requests();
    for asked in [
        "StartTransientUnit machinist-soft-reboot.service fail",
        "StartUnit soft-reboot.target replace-irreversibly",
    ] {
        assert!(
            received.iter().any(|it| it == asked),
            "{asked}: {received:?}"
        );
    }
    let command = |it: &&String| it.starts_with("ExecStart=");
    let command = received.iter().find(command).unwrap();
    assert!(command.contains("\"soft-reboot\""), "{command}");

    machine.without_reboot_flags();
    let refused = soft(RebootMethod::Logind).await.unwrap_err();
    assert!(!refused.retryable);
    assert!(!machine.requests().contains(&"Reboot false".to_owned()));
    // A foreign lock is respected, as for every reboot.
    machine.add_inhibitor("shutdown", "backup", "tape is running", "block");
    for method in [RebootMethod::Logind, RebootMethod::RebootTarget] {
        let refused = soft(method).await.unwrap_err();
        assert_eq!(refused.reason, Reason::RebootInhibited);
    }
}

#[tokio::test(start_paused = true)]
async fn pid_1_reports_userspace_start_time_and_soft_reboot_count() {
    let (machine, systemd) = machine();
    for soft_reboots in [None, Some(3)] {
        machine.set_userspace(4_000_000, soft_reboots);
        let message = systemd.running_userspace().await.unwrap();
        assert_eq!(
            (message.started, message.soft_reboots),
            (4_000_000, soft_reboots)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_accepted_reboot_is_reported_when_cancelled_or_timed_out() {
    // Announced by a signal; announced while the connection was down; never announced.
    for case in ["signal", "connection", "time"] {
        let (machine, systemd) = machine();
        Services::reboot(&systemd, RebootKind::Full, RebootMethod::Logind, "because")
            .await
            .unwrap();
        let over = systemd.reboot_over(LIMIT);
        let happens = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            match case {
                "signal" => machine.announce(false).await,
                "connection" => {
                    machine.cancel_without_signal();
                    machine.hang_up().await;
                }
                _ => {}
            }
        };
        let began = Instant::now();
        let (error, ()) = tokio::join!(over, happens);
        let (reason, seconds) = match case {
            "time" => (Reason::RebootTimeout, 65..=66),
            _ => (Reason::RebootCancelled, 2..=4),
        };
        assert_eq!(error.reason, reason, "{case}");
        let took = began.elapsed().as_secs();
        assert!(seconds.contains(&took), "{case}: {took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_inhibitor_lock_is_held_until_it_is_dropped() {
    let (machine, systemd) = machine();
    let login = systemd.login();
    let lock = login
        .inhibit("shutdown", "applying", InhibitMode::Delay)
        .await
        .unwrap();
    assert_eq!(machine.locks_held(), 1);
    drop(lock);
    assert_eq!(machine.locks_held(), 0);
    let listed = login.inhibitors().await.unwrap();
    assert_eq!(
        (listed[0].who.as_str(), listed[0].mode.as_str()),
        ("machinist", "delay")
    );
    assert_eq!(login.inhibit_delay_max().await.unwrap().as_secs(), 5);
    login.set_wall_message("new config").await.unwrap();
    assert_eq!(machine.requests()[1], "SetWallMessage \"new config\" true");
}

#[tokio::test(start_paused = true)]
async fn a_reboot_requested_by_others_is_observed() {
    let (machine, systemd) = machine();
    let login = systemd.login();
    let mut signals = login.prepare_for_shutdown().await.unwrap();
    assert!(!login.preparing_for_shutdown().await.unwrap());
    machine.announce(true).await;
    assert_eq!(signals.next().await, Some(true));
    assert!(login.preparing_for_shutdown().await.unwrap());
    machine.announce(false).await;
    assert_eq!(signals.next().await, Some(false));
    machine.hang_up().await;
    assert_eq!(signals.next().await, None, "listen anew");
}
