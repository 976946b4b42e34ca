//! The program `ostree-container`, which `ostree container` calls.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    ostree_ext::cli::run_from_iter(std::env::args_os()).await
}
