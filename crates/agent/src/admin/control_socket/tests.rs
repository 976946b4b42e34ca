use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A body of `size` bytes that counts how many of them were read.
fn body(size: usize) -> (Body, Arc<AtomicUsize>) {
    const CHUNK: usize = 1 << 20;
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let mut left = size;
    let chunks = std::iter::from_fn(move || {
        let chunk = left.min(CHUNK);
        left -= chunk;
        count.fetch_add(chunk, Ordering::Relaxed);
        (chunk > 0).then(|| Ok::<_, std::io::Error>(vec![b'x'; chunk]))
    });
    (Body::from_stream(futures_util::stream::iter(chunks)), taken)
}

async fn post(control: &ControlHandle, uid: Option<u32>, body: Body) -> (u16, String) {
    let mut headers = HeaderMap::new();
    headers.insert("machinist-by", "apply".parse().unwrap());
    headers.insert("machinist-config", "a-config".parse().unwrap());
    let peer = ConnectInfo(PeerProcess { uid });
    parts(submit_config(peer, State(control.clone()), headers, body).await).await
}

#[tokio::test]
async fn only_root_and_the_agents_own_user_may_request_a_config() {
    let (to, mut asks) = tokio::sync::mpsc::channel::<ControlRequest>(1);
    let control = ControlHandle::new(to, 1000);
    let answering = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Some(question) = asks.recv().await {
            match question {
                ControlRequest::Take(ask) => {
                    taken.push((ask.name, ask.config.len()));
                    let _ = ask.reply.send(Ok(Accepted { requested: 7 }));
                }
                ControlRequest::Wanted(reply) => {
                    let config = b"secret".to_vec();
                    let name = "wanted".to_owned();
                    taken.push((name.clone(), config.len()));
                    let _ = reply.send(Ok(DesiredConfigReply { name, config }));
                }
            }
        }
        taken
    });
    let size = 3 << 20;
    for (uid, code, read) in [
        (Some(0), 200, size),
        (Some(1000), 200, size),
        (Some(1001), 403, 0),
        (None, 403, 0),
    ] {
        let (body, taken) = body(size);
        assert_eq!(post(&control, uid, body).await.0, code, "{uid:?}");
        assert_eq!(taken.load(Ordering::Relaxed), read, "{uid:?}");
        let peer = ConnectInfo(PeerProcess { uid });
        let answer = get_desired_config(peer, State(control.clone())).await;
        assert_eq!(answer.status().as_u16(), code, "{uid:?}");
    }
    drop(control);
    let passed = answering.await.unwrap();
    let (config, wanted) = (("a-config".to_owned(), size), ("wanted".to_owned(), 6));
    assert_eq!(
        passed,
        [config.clone(), wanted.clone(), config, wanted],
        "others are not forwarded"
    );
}

#[tokio::test]
async fn control_socket_reads_one_config_at_a_time_and_reports_the_size_limit() {
    let (to, mut asks) = tokio::sync::mpsc::channel::<ControlRequest>(1);
    let control = ControlHandle::new(to, 1000);
    let first = tokio::spawn({
        let control = control.clone();
        async move { post(&control, Some(0), body(100).0).await }
    });
    let Some(ControlRequest::Take(ask)) = asks.recv().await else {
        panic!("no config was forwarded");
    };
    let (second, taken) = body(100);
    let (code, why) = post(&control, Some(0), second).await;
    assert_eq!(code, 503);
    assert!(why.contains("processing another config"), "{why}");
    assert_eq!(taken.load(Ordering::Relaxed), 0);
    ask.reply.send(Ok(Accepted { requested: 1 })).unwrap();
    assert_eq!(first.await.unwrap().0, 200);

    // With and without an announced length.
    for body in [body(101).0, Body::from(vec![0; 101])] {
        let refused = read(body, 100).await.unwrap_err();
        let (code, why) = parts(refused).await;
        assert_eq!(code, 413);
        assert!(why.contains("at most 100 bytes"), "{why}");
    }
}

async fn parts(answer: Response) -> (u16, String) {
    let code = answer.status().as_u16();
    let text = axum::body::to_bytes(answer.into_body(), 1000).await;
    (code, String::from_utf8(text.unwrap().to_vec()).unwrap())
}
