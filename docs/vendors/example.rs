//! A complete device driver for the vendor API: two devices, their health, and answers to questions.
//! Outside this crate, `tonic_prost_build::compile_protos("vendor.proto")` generates the module `api`.

use std::time::Duration;

use machinist_device_plugins::vendor_api::api::v1::{
    self as api, answer::Answer, from_agent::Said as FromAgent, from_vendor::Said, question::Asked,
};
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

const RESOURCE: &str = "acme.dev/accelerator";

/// Returns the current devices; a real driver queries its hardware here, and reports what is missing as unhealthy.
fn devices() -> Vec<api::Device> {
    let device = |id: &str| {
        let mut recipe = api::Recipe::default();
        recipe.env.insert("ACME_DEVICES".into(), "{id}".into());
        recipe.nodes.push(api::Node {
            path: format!("/dev/{id}"),
            ..Default::default()
        });
        api::Device {
            id: id.into(),
            health: api::Health::Healthy.into(),
            capacity: [("memory".into(), "16Gi".into())].into(),
            recipe: Some(recipe),
            ..Default::default()
        }
    };
    vec![device("acme0"), device("acme1")]
}

/// Answers a question of the agent. Allocations are answered by the recipes, so only two kinds arrive.
fn answer(question: api::Question) -> api::Answer {
    let answer = Some(match question.asked {
        // A real driver closes its device nodes and parks the firmware here.
        Some(Asked::Quiesce(_) | Asked::Resume(_)) => Answer::Done(api::Done {}),
        _ => Answer::Error("this vendor is not asked such things".into()),
    });
    let id = question.id;
    api::Answer { id, answer }
}

fn snapshot(generation: &mut u64, devices: &[api::Device]) -> Said {
    *generation += 1;
    Said::Snapshot(api::Snapshot {
        resource: RESOURCE.into(),
        generation: *generation,
        devices: devices.to_vec(),
        asks: None,
    })
}

/// Runs one session until it ends.
async fn session(socket: &str, instance: &str) -> Result<(), Box<dyn std::error::Error>> {
    let channel = Endpoint::new(format!("unix:{socket}"))?.connect().await?;
    let (to, said) = mpsc::channel(8);
    let say = |said| to.send(api::FromVendor { said: Some(said) });
    say(Said::Hello(api::Hello {
        api_versions: vec!["v1".into()],
        vendor: "acme".into(),
        instance: instance.into(),
        resources: vec![RESOURCE.into()],
    }))
    .await?;
    let mut client = api::vendor_client::VendorClient::new(channel);
    let said = ReceiverStream::new(said);
    let mut agent = client.session(said).await?.into_inner();
    let mut pause = Duration::from_secs(10);
    // The generation of the last snapshot, with its devices; no generation before the welcome.
    let (mut generation, mut offered) = (None, Vec::new());
    loop {
        let message = tokio::select! {
            message = agent.message() => message?.ok_or("the agent closed it")?,
            () = sleep(pause) => {
                match &mut generation {
                    Some(generation) if devices() != offered => {
                        offered = devices();
                        say(snapshot(generation, &offered)).await?;
                    }
                    _ => say(Said::Heartbeat(api::Heartbeat { number: 0 })).await?,
                }
                continue;
            }
        };
        match message.said {
            Some(FromAgent::Welcome(welcome)) => {
                pause = Duration::from_millis(u64::from(welcome.heartbeat_ms)) / 2;
                // Generations continue from those of earlier sessions of this instance.
                let kept = welcome.kept.iter().map(|one| one.generation).max();
                offered = devices();
                say(snapshot(generation.insert(kept.unwrap_or(0)), &offered)).await?;
            }
            Some(FromAgent::Rejected(no)) => {
                eprintln!("{}: {}", no.resource, no.message);
                // The last accepted snapshot stays in force: offer the devices again after the pause.
                offered.clear();
            }
            Some(FromAgent::Question(question)) => say(Said::Answer(answer(question))).await?,
            _ => {}
        }
    }
}

/// Runs sessions in a loop, because the agent may restart at any time.
pub(crate) async fn serve(socket: String) {
    let instance = format!("acme-{}", std::process::id());
    loop {
        if let Err(error) = session(&socket, &instance).await {
            eprintln!("the session is over: {error}");
        }
        sleep(Duration::from_millis(500)).await;
    }
}
