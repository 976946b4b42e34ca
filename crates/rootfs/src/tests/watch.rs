use super::*;

/// Waits until all of `wanted` was reported; other events may occur in between.
async fn sees(watch: &mut Watch, wanted: &[(&AbsPath, Option<&str>, WatchKind)]) {
    let mut missing: Vec<_> = wanted.to_vec();
    let wait = async {
        while !missing.is_empty() {
            for event in watch.next().await.unwrap() {
                let message = (&event.dir, event.name.as_deref(), event.kind);
                missing.retain(|wanted| *wanted != message);
            }
        }
    };
    let waited = tokio::time::timeout(WAIT_TIMEOUT, wait).await;
    assert!(waited.is_ok(), "not notified: {missing:?}");
}

#[tokio::test]
async fn a_watch_reports_creates_writes_moves_and_removals_by_name() {
    use WatchKind as K;
    let place = Place::new();
    let etc = at("/etc");
    // Added by another path, through a link inside the root, and reported by that path.
    place.link("/linked", "/etc");
    let linked = at("/linked");
    let mut watch = place.root.watch().unwrap();
    watch.add(&linked).unwrap();
    place.file("/etc/f", "x");
    let f = Some("f");
    sees(
        &mut watch,
        &[(&linked, f, K::Created), (&linked, f, K::Modified)],
    )
    .await;
    watch.add(&etc).unwrap();
    std::fs::rename(place.real("/etc/f"), place.real("/etc/g")).unwrap();
    let g = Some("g");
    sees(
        &mut watch,
        &[
            (&etc, f, K::MovedFrom),
            (&linked, g, K::MovedTo),
            (&etc, g, K::MovedTo),
        ],
    )
    .await;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(place.real("/etc/g"), mode).unwrap();
    sees(&mut watch, &[(&etc, g, K::Attributes)]).await;
    std::fs::remove_file(place.real("/etc/g")).unwrap();
    sees(&mut watch, &[(&etc, g, K::Deleted)]).await;
}

#[tokio::test]
async fn a_watch_reports_an_exchange_in_both_directories() {
    let place = Place::new();
    let (etc, staging) = (at("/etc"), place.directory("/staging"));
    let (a, b) = (place.file("/etc/a", "a"), place.file("/staging/b", "b"));
    let mut watch = place.root.watch().unwrap();
    watch.add(&etc).unwrap();
    watch.add(&staging).unwrap();
    place.root.exchange(&a, &b).unwrap();
    let moved = WatchKind::MovedTo;
    sees(
        &mut watch,
        &[(&etc, Some("a"), moved), (&staging, Some("b"), moved)],
    )
    .await;
}

#[tokio::test]
async fn a_recreated_directory_can_be_watched_again() {
    use WatchKind as K;
    let place = Place::new();
    let (etc, dir) = (at("/etc"), place.directory("/etc/d"));
    let mut watch = place.root.watch().unwrap();
    watch.add(&etc).unwrap();
    let mut ended = Vec::new();
    for gone in ["removed", "moved"] {
        let id = watch.add(&dir).unwrap();
        match gone {
            "removed" => std::fs::remove_dir(place.real("/etc/d")).unwrap(),
            _ => std::fs::rename(place.real("/etc/d"), place.real("/old")).unwrap(),
        }
        sees(&mut watch, &[(&dir, None, K::DirGone)]).await;
        ended.push(id);
        assert!(watch.add(&dir).unwrap_err().is_not_found());
        place.directory("/etc/d");
        sees(&mut watch, &[(&etc, Some("d"), K::Created)]).await;
    }
    watch.add(&dir).unwrap();
    // The directory that was moved is no longer reported, least of all as `/etc/d`.
    place.file("/old/stale", "");
    place.file("/etc/d/f", "");
    let message = tokio::time::timeout(WAIT_TIMEOUT, watch.next()).await;
    let message = message.unwrap().unwrap();
    assert!(
        message
            .iter()
            .any(|event| event.name.as_deref() == Some("f")),
        "{message:?}"
    );
    assert!(
        message
            .iter()
            .all(|event| event.name.as_deref() != Some("stale")),
        "{message:?}"
    );
    for id in ended {
        watch.remove(id).unwrap();
    }
    place.file("/etc/d/g", "");
    sees(&mut watch, &[(&dir, Some("g"), K::Created)]).await;
}

#[tokio::test]
async fn a_removed_watch_reports_nothing() {
    let place = Place::new();
    let (etc, other) = (at("/etc"), place.directory("/other"));
    let mut watch = place.root.watch().unwrap();
    let id = watch.add(&etc).unwrap();
    watch.add(&other).unwrap();
    watch.remove(id).unwrap();
    place.file("/etc/silent", "");
    place.file("/other/told", "");
    let batch = tokio::time::timeout(WAIT_TIMEOUT, watch.next()).await;
    let batch = batch.unwrap().unwrap();
    assert!(batch.iter().all(|event| event.dir == other), "{batch:?}");
    let file = place.file("/other/file", "");
    let error = watch.add(&file).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
}
