//! The training.

use burn::{
    config::Config,
    module::Module,
    optim::{GradientsParams, RmsPropConfig},
    tensor::Device,
};
use burn_amp::MixedPrecision;
use std::path::Path;

use super::{
    TrainingConfig, data,
    model::{Clip, Critic, Generator, noise},
};
use crate::{Result, mean};

/// Trains, prints the distance that the critic sees between real and drawn images in each epoch, and saves the generator.
///
/// # Errors
///
/// If a file cannot be written, or the data is damaged.
pub fn train(folder: &Path, config: &TrainingConfig, device: &Device) -> Result<()> {
    config.save(folder.join("config.json"))?;
    device.seed(config.seed);
    let device = device.clone().autodiff();

    let amp = MixedPrecision::new(config.precision);
    let loader = data::loader(config, &device)?;
    let rms_prop = RmsPropConfig::new().with_momentum(0.0);
    let (mut generator, mut generator_optim) =
        amp.prepare(Generator::new(&device), rms_prop.init());
    let (mut critic, mut critic_optim) = amp.prepare(Critic::new(&device), rms_prop.init());
    let mut clip = Clip { limit: config.clip };

    let mut steps = 0;
    for epoch in 1..=config.num_epochs {
        let mut distances = Vec::new();
        for batch in loader.iter() {
            let real = batch?.images;
            let noise = noise(real.dims()[0], &device);

            let fake = amp.autocast(noise.clone(), |x| generator.forward(x));
            let images = [real, fake.detach()];
            let [real, fake] = amp.autocast(images, |x| x.map(|x| critic.forward(x)));
            let loss = fake.mean() - real.mean();
            distances.push(-loss.clone().into_scalar::<f32>());
            let grads = GradientsParams::from_grads(loss.backward(), &critic);
            critic = critic_optim.step(config.learning_rate, critic, grads);
            critic = critic.map(&mut clip);

            steps += 1;
            if steps % config.critic_steps == 0 {
                let scores = amp.autocast(noise, |x| critic.forward(generator.forward(x)));
                let loss = -scores.mean();
                let grads = GradientsParams::from_grads(loss.backward(), &generator);
                generator = generator_optim.step(config.learning_rate, generator, grads);
            }
        }
        println!("epoch {epoch}: distance {:.6}", mean(&distances));
    }
    generator.save_file(folder.join("model"))?;
    Ok(())
}
