//! Runs the example device driver.
#![expect(clippy::print_stderr, reason = "an example prints to the terminal")]

mod example;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    match std::env::var("MACHINIST_VENDOR_SOCKET") {
        Ok(socket) => example::serve(socket).await,
        Err(_) => eprintln!("MACHINIST_VENDOR_SOCKET names the agent's socket"),
    }
}
