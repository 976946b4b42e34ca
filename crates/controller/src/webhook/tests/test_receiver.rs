//! A receiver of notifications with scripted answers, which is a proxy, too.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

/// The authority of the receiver's certificate, which is for `localhost`.
pub(crate) const AUTHORITY: &[u8] = include_bytes!("tls/authority.pem");

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// A status line with further headers.
    Status(&'static str),
    /// No answer, and the connection stays open.
    Hang,
    /// The connection is closed.
    Close,
    /// A body without an end.
    Endless,
}

/// A request: everything before its body, and the body.
pub(crate) type Heard = (String, String);

pub(crate) struct Receiver {
    pub(crate) port: u16,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Receiver {
    /// Starts; after the given answers, each is `200 OK`.
    pub(crate) async fn start(answers: &[Answer]) -> Self {
        Self::listen(answers, None).await
    }

    pub(crate) async fn start_tls(answers: &[Answer]) -> Self {
        let chain = CertificateDer::pem_slice_iter(include_bytes!("tls/server.pem"));
        let chain = chain.map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/server.key")).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = builder
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Self::listen(answers, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn listen(answers: &[Answer], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(VecDeque::from(answers.to_vec())));
        let told = Arc::clone(&heard);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (told, answers, tls) = (Arc::clone(&told), Arc::clone(&answers), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &told, &answers).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, &told, &answers).await;
                            }
                        }
                    }
                });
            }
        });
        Self { port, heard }
    }

    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    pub(crate) async fn until_heard(&self, count: usize) {
        while self.heard().len() < count {
            tokio::task::yield_now().await;
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    told: &Mutex<Vec<Heard>>,
    answers: &Mutex<VecDeque<Answer>>,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.parse().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.unwrap();
    let body = String::from_utf8(body).unwrap();
    told.lock().unwrap().push((head.clone(), body));
    if let Some(target) = head.strip_prefix("CONNECT ") {
        let target = target.split(' ').next().unwrap();
        let mut onward = TcpStream::connect(target).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let _ = copy_bidirectional(&mut stream, &mut onward).await;
        return;
    }
    let answer = answers.lock().unwrap().pop_front();
    let text = match answer.unwrap_or(Answer::Status("200 OK")) {
        Answer::Status(text) => format!("HTTP/1.1 {text}\r\nContent-Length: 0\r\n\r\n"),
        Answer::Hang => return std::future::pending().await,
        Answer::Close => return,
        Answer::Endless => "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned(),
    };
    if stream.write_all(text.as_bytes()).await.is_err() {
        return;
    }
    while matches!(answer, Some(Answer::Endless)) && stream.write_all(&[b'x'; 4096]).await.is_ok() {
    }
}
